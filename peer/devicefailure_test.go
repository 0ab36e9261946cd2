package peer_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"ibverbx/peer"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// dying is a NIC that fails at the first call of a kind.
type dying struct {
	verbs.Context
	nic  *softnic.NIC
	call string
}

func (d *dying) at(call string) {
	if d.call == call {
		d.call = ""
		d.nic.Fail()
	}
}

func (d *dying) QueryDevice() (verbs.DeviceAttr, error) {
	d.at("offer")
	return d.Context.QueryDevice()
}

func (d *dying) AllocPD() (verbs.PD, error) {
	d.at("rails")
	return d.Context.AllocPD()
}

func (d *dying) CreateCQ(cfg verbs.CQConfig) (verbs.CQ, error) {
	d.at("CQ")
	cq, err := d.Context.CreateCQ(cfg)
	d.at("lanes")
	return cq, err
}

// TestDeviceFailsAtStart: the device of a rail fails at some point of the way to a Session, at either end. The Session starts on the
// other rail. When the device works again, its lanes enter service.
func TestDeviceFailsAtStart(t *testing.T) {
	for side := range 2 {
		for i, call := range []string{"offer", "rails", "CQ", "lanes"} {
			rail := (side + i) % 2
			t.Run(fmt.Sprintf("side=%d/rail=%d/at=%s", side, rail, call), func(t *testing.T) {
				var nics [2][]*softnic.NIC
				cfgs := [2]peer.Config{config(badHost(t, softnic.Impairment{}, &nics[0])), config(badHost(t, softnic.Impairment{}, &nics[1]))}
				open := cfgs[side].Open
				cfgs[side].Open = func() (peer.NICs, error) {
					n, err := open()
					if err == nil {
						n.Rails[rail].Context = &dying{Context: n.Rails[rail].Context, nic: nics[side][rail], call: call}
					}
					return n, err
				}
				d, l := mustMeet(t, cfgs[0], cfgs[1])
				write(t, d, l, 1)
				write(t, l, d, 2)
				s := [2]*peer.Session{d, l}[side]
				if up := s.QP.Stats().Rails[rail].Up; up != 0 {
					t.Errorf("%d lanes are in service on the device that has failed, want 0", up)
				}
				nics[side][rail].Recover()
				for limit := time.Now().Add(2 * time.Minute); d.QP.Stats().Out > 0 || l.QP.Stats().Out > 0; {
					write(t, d, l, 200)
					if time.Now().After(limit) {
						t.Fatalf("after 2 minutes the lanes are %+v, want all up", d.QP.Stats().Lanes)
					}
				}
				write(t, l, d, 3)
			})
		}
	}
}

// TestNoDeviceAtStart: all devices have failed. Both sides get the error.
func TestNoDeviceAtStart(t *testing.T) {
	var nics [2][]*softnic.NIC
	cfgs := [2]peer.Config{config(badHost(t, softnic.Impairment{}, &nics[0])), config(badHost(t, softnic.Impairment{}, &nics[1]))}
	open := cfgs[0].Open
	cfgs[0].Open = func() (peer.NICs, error) {
		n, err := open()
		if err == nil {
			nics[0][0].Fail()
			nics[0][1].Fail()
		}
		return n, err
	}
	_, _, dialErr, listenErr := meet(t, cfgs[0], cfgs[1])
	if !errors.Is(dialErr, verbs.ErrDeviceFatal) || listenErr == nil {
		t.Errorf("got %v and %v, want %v and an error", dialErr, listenErr, verbs.ErrDeviceFatal)
	}
}
