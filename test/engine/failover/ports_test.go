package failover_test

import (
	"testing"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/internal/nullnic"
	"ibverbx/verbs"
)

// dualPort is a NIC whose ports 1 and 2 are two rails. It reports each event once.
type dualPort struct {
	*nullnic.NIC
	err error // returned by Events when the queue is empty
}

// Events implements verbs.Context.
func (d *dualPort) Events(dst []verbs.Event) (n int, err error) {
	if n, err = d.NIC.Events(dst); n == 0 && err == nil {
		err = d.err
	}
	return n, err
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
		"the device, as error":   {[]verbs.Event{{Type: verbs.EventPortActive, Port: 2}}, verbs.ErrDeviceFatal, [3]int{0, 0, 2}},
		"nothing of any concern": {[]verbs.Event{{Type: verbs.EventPortActive, Port: 2}}, nil, [3]int{2, 2, 2}},
	} {
		t.Run(name, func(t *testing.T) {
			nic, single := &dualPort{NIC: nullnic.New("dual", 0x11)}, nullnic.New("single", 0x11)
			h := enginetest.NewRailsOn(t, ibverbx.RailConfig{Context: nic, Port: 1}, ibverbx.RailConfig{Context: nic, Port: 2}, ibverbx.RailConfig{Context: single})
			h.NewCQ(ibverbx.CQConfig{})
			connectToItself(t, h, 6)
			h.Poll()
			nic.err = c.err
			for _, e := range c.events {
				nic.Raise(e)
			}
			h.Poll()
			for rail, r := range h.QP.Stats().Rails {
				if r.Up != c.up[rail] {
					t.Errorf("rail %d has %d data lanes in service, want %d", rail, r.Up, c.up[rail])
				}
			}
		})
	}
}

// connectToItself gives a host a VirtualQP connected to itself, which only has to notice events.
func connectToItself(t *testing.T, h *enginetest.Host, lanes int) {
	t.Helper()
	control, _ := ibverbx.ControlPair()
	q := h.NewQP(ibverbx.Config{Lanes: lanes, Control: control})
	card, err := q.Card()
	enginetest.Must(t, err)
	enginetest.Must(t, q.Connect(card))
}

// TestEventsReachEveryUser: an event of a NIC reaches every VirtualQP on it, although a Context reports it
// once: on two VirtualCQs of one Rails, and on a fork of the Rails. It does not matter which polls first.
func TestEventsReachEveryUser(t *testing.T) {
	for first := range 3 {
		nic, other := nullnic.New("null0", 0x11), nullnic.New("null1", 0x11)
		a := enginetest.NewRailsOn(t, ibverbx.RailConfig{Context: nic}, ibverbx.RailConfig{Context: other})
		fork, err := a.Rails.Fork()
		enginetest.Must(t, err)
		t.Cleanup(func() { enginetest.Must(t, fork.Close()) })
		b, c := enginetest.NewOn(t, a.Rails), enginetest.NewOn(t, fork)
		hosts := []*enginetest.Host{a, b, c}
		for _, h := range hosts {
			h.NewCQ(ibverbx.CQConfig{})
			connectToItself(t, h, 4)
		}
		nic.Raise(verbs.Event{Type: verbs.EventPortErr, Port: 1})
		for i := range hosts {
			h := hosts[(first+i)%len(hosts)]
			h.Poll()
			if r := h.QP.Stats().Rails; r[0].Up != 0 || r[1].Up != 2 {
				t.Errorf("user %d, polled after %d others, has %d and %d data lanes in service, want 0 and 2", (first+i)%len(hosts), i, r[0].Up, r[1].Up)
			}
		}
	}
}

// TestOldEventsConcernNobody: an event that precedes the connection does not cost a VirtualQP its lanes.
func TestOldEventsConcernNobody(t *testing.T) {
	nic := nullnic.New("null0", 0x11)
	h := enginetest.NewRailsOn(t, ibverbx.RailConfig{Context: nic})
	h.NewCQ(ibverbx.CQConfig{})
	nic.Raise(verbs.Event{Type: verbs.EventPortErr, Port: 1})
	connectToItself(t, h, 2)
	h.Poll()
	if up := h.QP.Stats().Rails[0].Up; up != 2 {
		t.Errorf("%d data lanes are in service, want 2", up)
	}
}

// TestClosedRailsLeaveEventsToOthers: Rails claim a NIC's events when a VirtualQP needs them. Closing Rails
// does not take the events from others that have claimed the NIC since.
func TestClosedRailsLeaveEventsToOthers(t *testing.T) {
	nic := &listener{NIC: nullnic.New("null0", 0x11)}
	var wakers [2]*verbs.Waker
	var ends [2]func()
	for i := range wakers {
		rails, err := ibverbx.NewRails(ibverbx.RailConfig{Context: nic})
		enginetest.Must(t, err)
		fork, err := rails.Fork()
		enginetest.Must(t, err)
		h := enginetest.NewOn(t, fork)
		h.NewCQ(ibverbx.CQConfig{})
		if i == 0 && nic.waker != nil {
			t.Error("events are taken from a program without a Control")
		}
		connectToItself(t, h, 2)
		wakers[i] = nic.waker
		ends[i] = func() {
			enginetest.Must(t, h.QP.Close())
			enginetest.Must(t, h.CQ.Close())
			enginetest.Must(t, fork.Close())
			enginetest.Must(t, rails.Close())
		}
	}
	ends[0]()
	if wakers[0] == wakers[1] || nic.waker != wakers[1] {
		t.Error("events do not go to the Rails that are open")
	}
	ends[1]()
}

// listener records the Waker that its NIC reports events to.
type listener struct {
	*nullnic.NIC
	waker *verbs.Waker
}

func (l *listener) NotifyEvents(w *verbs.Waker) error {
	l.waker = w
	return l.NIC.NotifyEvents(w)
}
