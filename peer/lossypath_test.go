package peer_test

import (
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/peer"
	"ibverbx/softnic"
)

// badHost opens two NICs over UDP on a network that loses packets, and records them in kept.
func badHost(t *testing.T, imp softnic.Impairment, kept *[]*softnic.NIC) func() (peer.NICs, error) {
	t.Helper()
	return func() (n peer.NICs, err error) {
		var closers []func() error
		n.Close = func() (err error) {
			for _, f := range closers {
				err = errors.Join(err, f())
			}
			return err
		}
		for i := range 2 {
			link, err := softnic.NewUDPLink(&softnic.UDPConfig{Seed: uint64(i + 1), Impairment: imp})
			if err != nil {
				return n, err
			}
			nic, err := softnic.New(link, softnic.Config{Name: fmt.Sprint("bad", i), Addr: loopback})
			if err != nil {
				return n, err
			}
			closers = append(closers, nic.Close)
			*kept = append(*kept, nic)
			ctx, err := nic.Open()
			if err != nil {
				return n, err
			}
			n.Rails = append(n.Rails, ibverbx.RailConfig{Context: ctx})
		}
		return n, nil
	}
}

// Every byte arrives over UDP with 1 % packet loss, and when a rail is cut and restored.
func TestSessionSurvives(t *testing.T) {
	for name, loss := range map[string]float64{"loss": 0.01, "cut": 0} {
		t.Run(name, func(t *testing.T) {
			var nics [2][]*softnic.NIC
			imp := softnic.Impairment{Loss: loss}
			d, l := mustMeet(t, tokenConfig(badHost(t, imp, &nics[0])), tokenConfig(badHost(t, imp, &nics[1])))
			for i := range 10 {
				write(t, d, l, byte(i))
			}
			if name != "cut" {
				return
			}
			for _, nic := range []*softnic.NIC{nics[0][1], nics[1][1]} {
				nic.SetPort(false)
			}
			for i := range 10 {
				write(t, d, l, byte(100+i))
			}
			for _, nic := range []*softnic.NIC{nics[0][1], nics[1][1]} {
				nic.SetPort(true)
			}
			whole := func() bool {
				for _, lane := range d.QP.Stats().Lanes {
					if lane.State != "up" || (lane.Rail == 1 && lane.Generation == 0) {
						return false
					}
				}
				return true
			}
			for limit := time.Now().Add(2 * time.Minute); !whole(); {
				write(t, d, l, 200)
				if time.Now().After(limit) {
					t.Fatalf("after 2 minutes the lanes are %+v, want all up", d.QP.Stats().Lanes)
				}
			}
		})
	}
}

// classes is a Capture that counts packets by traffic class, which is 0 for received packets.
type classes [256]atomic.Int64

func (c *classes) Packet(_ int64, _, _ netip.AddrPort, _ uint16, class, _ uint8, _ ...[]byte) {
	c[class].Add(1)
}

// Config.Path applies to every rail without its own Path.
func TestSessionPath(t *testing.T) {
	for own, want := range map[uint8]uint8{0: 104, 8: 8} {
		seen := &classes{}
		cfg := config(func() (n peer.NICs, err error) {
			n, err = openCaptured(seen)
			if err == nil {
				n.Rails[0].Path.TrafficClass = own
			}
			return n, err
		})
		cfg.Path.TrafficClass = 104
		d, l := mustMeet(t, cfg, config(func() (peer.NICs, error) { return openCaptured(nil) }))
		write(t, d, l, 1)
		if seen[want].Load() == 0 || seen[112-want].Load() != 0 {
			t.Errorf("a rail of class %d sent %d packets of class 104 and %d of class 8, want class %d", own, seen[104].Load(), seen[8].Load(), want)
		}
	}
}

// openCaptured opens a software NIC with a Capture, which may be nil.
func openCaptured(capture softnic.Capture) (n peer.NICs, err error) {
	link, err := softnic.NewUDPLink(&softnic.UDPConfig{Capture: capture})
	if err != nil {
		return n, err
	}
	nic, err := softnic.New(link, softnic.Config{Addr: loopback})
	if err != nil {
		return n, err
	}
	n.Close = nic.Close
	ctx, err := nic.Open()
	n.Rails = append(n.Rails, ibverbx.RailConfig{Context: ctx})
	return n, err
}

// longest is a Capture that records the length of the longest packet.
type longest struct{ atomic.Int64 }

func (l *longest) Packet(_ int64, _, _ netip.AddrPort, _ uint16, _, _ uint8, parts ...[]byte) {
	size := int64(0)
	for _, part := range parts {
		size += int64(len(part))
	}
	l.Store(max(l.Load(), size))
}

// No packet is longer than the MTU that the sides agreed on.
func TestSessionMTU(t *testing.T) {
	var seen [2]longest
	open := func(capture softnic.Capture) func() (peer.NICs, error) {
		return func() (peer.NICs, error) { return openCaptured(capture) }
	}
	small := config(open(&seen[0]))
	small.MTU = 512
	d, l := mustMeet(t, small, config(open(&seen[1])))
	write(t, d, l, 1)
	write(t, l, d, 2)
	const headers = 64 // BTH, RETH, immediate and ICRC
	if got := max(seen[0].Load(), seen[1].Load()); d.Agreed.MTU.Bytes() != 512 || got <= 512 || got > 512+headers {
		t.Errorf("the longest packet has %d bytes with an MTU of %d, want 512 and its headers", got, d.Agreed.MTU.Bytes())
	}
}
