package peer_test

import (
	"strings"
	"testing"
	"time"

	"ibverbx/peer"
	"ibverbx/softnic"
)

// downAtStart opens NICs whose ports on the given rails are down.
func downAtStart(open func() (peer.NICs, error), nics *[]*softnic.NIC, rails ...int) func() (peer.NICs, error) {
	return func() (peer.NICs, error) {
		n, err := open()
		if err == nil {
			for _, rail := range rails {
				(*nics)[rail].SetPort(false)
			}
		}
		return n, err
	}
}

// TestPortDownAtStart: a Session starts on the rails with active ports. The other rail's lanes enter service
// later.
func TestPortDownAtStart(t *testing.T) {
	for side := range 2 {
		var nics [2][]*softnic.NIC
		cfgs := [2]peer.Config{config(badHost(t, softnic.Impairment{}, &nics[0])), config(badHost(t, softnic.Impairment{}, &nics[1]))}
		cfgs[side].Open = downAtStart(cfgs[side].Open, &nics[side], 1)
		d, l := mustMeet(t, cfgs[0], cfgs[1])
		for i := range 3 {
			write(t, d, l, byte(i))
			write(t, l, d, byte(100+i))
		}
		if up := [2]*peer.Session{d, l}[side].QP.Stats().Rails[1].Up; up != 0 {
			t.Errorf("%d lanes are in service on the port that is down, want 0", up)
		}
		nics[side][1].SetPort(true)
		for limit := time.Now().Add(2 * time.Minute); d.QP.Stats().Out > 0 || l.QP.Stats().Out > 0; {
			write(t, d, l, 200)
			if time.Now().After(limit) {
				t.Fatalf("after 2 minutes the lanes are %+v, want all up", d.QP.Stats().Lanes)
			}
		}
	}
}

// TestNoPortAtStart: all ports are down, or one is down without failover. The error names the port.
func TestNoPortAtStart(t *testing.T) {
	for name, c := range map[string]struct {
		down       []int
		noFailover [2]bool
	}{
		"both ports":                         {[]int{0, 1}, [2]bool{}},
		"one, and this side has no failover": {[]int{1}, [2]bool{true, false}},
		"one, and the peer has no failover":  {[]int{1}, [2]bool{false, true}},
	} {
		t.Run(name, func(t *testing.T) {
			var nics [2][]*softnic.NIC
			cfgs := [2]peer.Config{config(badHost(t, softnic.Impairment{}, &nics[0])), config(badHost(t, softnic.Impairment{}, &nics[1]))}
			cfgs[0].Open = downAtStart(cfgs[0].Open, &nics[0], c.down...)
			for i := range cfgs {
				cfgs[i].NoFailover = c.noFailover[i]
			}
			_, _, dialErr, listenErr := meet(t, cfgs[0], cfgs[1])
			for side, err := range []error{dialErr, listenErr} {
				if err == nil || !strings.Contains(err.Error(), "rail 1: port 1 of bad1 is PORT_DOWN, not PORT_ACTIVE") {
					t.Errorf("side %d: got %v, want an error that names the port", side, err)
				}
			}
		})
	}
}
