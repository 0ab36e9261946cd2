package failover_test

import (
	"testing"

	"ibverbx"
	"ibverbx/internal/nullnic"
	"ibverbx/internal/rig"
	"ibverbx/verbs"
)

// dualPort is a NIC whose ports 1 and 2 are two rails. Its events are those of the test, and each is
// reported once.
type dualPort struct {
	*nullnic.NIC
	events []verbs.Event
	err    error // returned by Events
}

// Events implements verbs.Context.
func (d *dualPort) Events(dst []verbs.Event) (int, error) {
	n := copy(dst, d.events)
	d.events = d.events[n:]
	return n, d.err
}

// TestTwoRailsOnOneContext: the events of a NIC with two ports reach both of its rails, although a Context
// reports each event once.
func TestTwoRailsOnOneContext(t *testing.T) {
	for name, c := range map[string]struct {
		events []verbs.Event
		err    error
		up     [3]int // data lanes in service afterwards, by rail
	}{
		"port 1":                 {[]verbs.Event{{Type: verbs.EventPortErr, Port: 1}}, nil, [3]int{0, 2, 2}},
		"port 2":                 {[]verbs.Event{{Type: verbs.EventPortErr, Port: 2}}, nil, [3]int{2, 0, 2}},
		"both ports":             {[]verbs.Event{{Type: verbs.EventPortErr, Port: 2}, {Type: verbs.EventPortErr, Port: 1}}, nil, [3]int{0, 0, 2}},
		"a port without number":  {[]verbs.Event{{Type: verbs.EventPortErr}}, nil, [3]int{0, 0, 2}},
		"the device":             {[]verbs.Event{{Type: verbs.EventDeviceFatal}}, nil, [3]int{0, 0, 2}},
		"the device, as error":   {nil, verbs.ErrDeviceFatal, [3]int{0, 0, 2}},
		"nothing of any concern": {[]verbs.Event{{Type: verbs.EventPortActive, Port: 2}}, nil, [3]int{2, 2, 2}},
	} {
		t.Run(name, func(t *testing.T) {
			nic, single := &dualPort{NIC: nullnic.New("dual", 0x11)}, nullnic.New("single", 0x11)
			h := rig.NewRailsOn(t, ibverbx.RailConfig{Context: nic, Port: 1}, ibverbx.RailConfig{Context: nic, Port: 2}, ibverbx.RailConfig{Context: single})
			h.NewCQ(ibverbx.CQConfig{})
			control, _ := ibverbx.ControlPair(nil, nil)
			h.NewQP(ibverbx.Config{Lanes: 6, Control: control})
			card, err := h.QP.Card()
			rig.Must(t, err)
			rig.Must(t, h.QP.Connect(card)) // to itself: it only has to notice
			h.Poll()
			nic.events, nic.err = c.events, c.err
			h.Poll()
			for rail, r := range h.QP.Stats().Rails {
				if r.Up != c.up[rail] {
					t.Errorf("rail %d has %d data lanes in service, want %d", rail, r.Up, c.up[rail])
				}
			}
		})
	}
}
