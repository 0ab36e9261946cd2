package ibverbx

import (
	"errors"
	"slices"
)

// This file chooses the rails of lanes that are rebuilt.

// roams reports whether data lanes may leave home: a side has a rail without a data lane, and both cards have the addresses of all rails.
func (u *setup) roams() bool {
	return len(u.lanes) < max(u.rails.Len(), u.remoteRails) && len(u.addresses) > 0 && len(u.remoteAddresses) > 0
}

// leads reports whether this end chooses the rails of lanes that may leave home: the one with the
// smaller incarnation does or, if data lanes may too, the one with more rails.
func (u *setup) leads() bool {
	if here := u.rails.Len(); here != u.remoteRails && u.roams() {
		return here > u.remoteRails
	}
	return u.incarnation <= u.peer
}

// chooseRail returns the rail of a lane's next generation. A data lane stays at home, unless it roams. The
// message and notify lanes, of which there is only one each, go to a rail where a data lane is in
// service, home if possible. Every other attempt leaves home: a data lane that carries nothing counts as in
// service although its rail may be dead. The end that does not lead takes the rail that faces the one it
// was offered.
func (f *failover) chooseRail(l *lane) (rail uint8, ok bool) {
	u, v := f.setup, &l.life
	if l.role == roleData && !u.roams() {
		return v.home, true
	}
	if !u.leads() {
		if v.meeting.offer == nil {
			return 0, false
		}
		return u.facing(v.meeting.offer.rail), true
	}
	if l.role == roleData {
		return f.roam(l), true
	}
	rail = v.home
	for i, other := range u.lanes {
		if other.life.state != laneUp {
			continue
		}
		if other.rail == v.home {
			if v.attempts%2 == 0 {
				return v.home, true
			}
			continue
		}
		// Another rail each time, in case one does not work.
		if rail == v.home || uint64(i)%uint64(len(u.lanes)) == v.attempts%uint64(len(u.lanes)) {
			rail = other.rail
		}
	}
	return rail, true
}

// roam returns the rail of a data lane's next generation if data lanes may leave home. They do so only while no data lane is in service,
// because otherwise it carries all requests. They alternate between home and the rails without a data lane, and skip a rail whose port is down.
func (f *failover) roam(l *lane) uint8 {
	u, v := f.setup, &l.life
	if slices.ContainsFunc(u.lanes, func(other *lane) bool { return other.life.state == laneUp }) {
		return v.home
	}
	rails := append(make([]uint8, 0, MaxRails), v.home)
	for i := len(u.lanes); i < u.rails.Len(); i++ {
		if !u.addresses[i].IsZero() && !u.remoteAddresses[i%u.remoteRails].IsZero() {
			rails = append(rails, uint8(i))
		}
	}
	for range rails {
		if rail := rails[v.attempts%uint64(len(rails))]; !u.rails.rails[rail].down() {
			return rail
		}
		v.attempts++
	}
	return v.home
}

// facing returns the rail at this side that faces a rail of the peer, as the lanes were laid out when
// the two sides connected. More lanes would continue the layout.
func (u *setup) facing(remote uint8) uint8 {
	for _, l := range u.all {
		if l.life.remoteHome == remote {
			return l.life.home
		}
	}
	return remote % uint8(u.rails.Len())
}

// errReturning is why a lane that works is taken out of service.
var errReturning = errors.New("it returns to the rail that it was made on")

// returnHome takes a lane that was rebuilt on another rail out of service, to be
// rebuilt at home, when it is idle. Atomics wait for that. A message or notify lane returns when a data lane is in service at
// home. A data lane cannot know whether home works, so it waits longer before it tries. The end that leads decides.
func (f *failover) returnHome(l *lane) {
	u, v, age := f.setup, &l.life, f.time.now-l.life.since
	if l.rail == v.home || !u.leads() || !l.idle() || age < backoffMax/8 {
		return
	}
	works := slices.ContainsFunc(u.lanes, func(other *lane) bool { return other.rail == v.home && other.life.state == laneUp })
	if l.role == roleData && !works && age >= backoffMax && f.time.now >= v.due {
		v.due = f.time.now + backoffMax/8
		works = !u.rails.rails[v.home].down()
	}
	if works {
		v.backoff, v.attempts = 0, 0
		f.laneDown(l, errReturning)
	}
}
