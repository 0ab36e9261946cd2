package peer

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"ibverbx"
	"ibverbx/verbs"
)

// ErrMismatch means that the requirements of the two sides are incompatible.
var ErrMismatch = errors.New("the two sides do not match")

// MismatchError is an ErrMismatch that names the value and both sides' limits.
type MismatchError struct {
	// What is the negotiated value, such as "lanes".
	What string
	// Dialer and Listener are the limits of the two sides, such as "needs at least 8" and "can do at most 4".
	Dialer, Listener string
}

// Error implements error.
func (e *MismatchError) Error() string {
	return fmt.Sprintf("%v: %s: the dialer %s, the listener %s", ErrMismatch, e.What, e.Dialer, e.Listener)
}

// Unwrap returns ErrMismatch.
func (e *MismatchError) Unwrap() error { return ErrMismatch }

// Agreement is the result of the negotiation, equal on both sides.
type Agreement struct {
	// Scheme is the scheme of the VirtualQP.
	Scheme ibverbx.Scheme
	// Lanes is the number of lanes; SendDepth, RecvDepth and LaneDepth are queue depths in requests.
	Lanes, SendDepth, RecvDepth, LaneDepth int
	// FragmentSize is in bytes; 0 means that it depends on the request's length.
	FragmentSize int
	// MTU is the path MTU.
	MTU verbs.MTU
	// Failover reports whether lost lanes are rebuilt.
	Failover bool
	// Sealed reports whether all packets are encrypted and authenticated.
	Sealed bool
}

// Defaults for values that neither side sets. lanesPerRail is multiplied by the larger number
// of rails.
const (
	lanesPerRail     = 4
	defaultDepth     = 256
	defaultLaneDepth = 128
	// laneRequests roughly limits the requests held by all lanes together, unless this side
	// has set a larger depth. A peer's preference must not exhaust local memory. A lane
	// always holds minLaneDepth.
	laneRequests = 1 << 18
	minLaneDepth = 16
)

// negotiate returns values acceptable to both sides. It depends only on the two offers, which must be valid, so both sides get the same
// result. An error is a *MismatchError.
func negotiate(dialer, listener *Offer) (a Agreement, err error) {
	if err := reachable(dialer, listener); err != nil {
		return a, err
	}
	if d, l := dialer.Transport, listener.Transport; d != l && d != "" && l != "" {
		return a, &MismatchError{What: "transport", Dialer: fmt.Sprintf("uses %q", d), Listener: fmt.Sprintf("uses %q", l)}
	}
	if err := agreeLink(&dialer.Link, &listener.Link); err != nil {
		return a, err
	}
	if a.Scheme, err = commonScheme(dialer.Schemes, listener.Schemes); err != nil {
		return a, err
	}
	if a.Sealed, err = sealed(dialer.Seal, listener.Seal); err != nil {
		return a, err
	}
	a.Failover = dialer.Failover && listener.Failover
	lanes := min(lanesPerRail*max(len(dialer.Rails), len(listener.Rails)), maxLanes)
	mtu := 0
	for _, f := range [...]struct {
		what     string
		d, l     Range
		fallback int // the default, or 0
		to       *int
	}{
		{"lanes", dialer.Lanes, listener.Lanes, lanes, &a.Lanes},
		{"send depth", dialer.SendDepth, listener.SendDepth, defaultDepth, &a.SendDepth},
		{"receive depth", dialer.RecvDepth, listener.RecvDepth, defaultDepth, &a.RecvDepth},
		{"lane depth", dialer.LaneDepth, listener.LaneDepth, defaultLaneDepth, &a.LaneDepth},
		{"fragment size", dialer.Fragment, listener.Fragment, 0, &a.FragmentSize},
		{"MTU", dialer.MTU, listener.MTU, maxMTU, &mtu},
	} {
		if f.to == &a.LaneDepth {
			f.d, f.l = f.d.perLane(a.Lanes), f.l.perLane(a.Lanes)
		}
		if *f.to, err = agreeRange(f.what, f.d, f.l, f.fallback); err != nil {
			return a, err
		}
	}
	a.MTU = mtuWithin(mtu)
	return a, nil
}

// perLane limits a side's depth per lane for the given number of lanes.
func (r Range) perLane(lanes int) Range {
	r.Max = min(r.Max, max(laneRequests/lanes, minLaneDepth, r.Want, r.Min))
	return r
}

// agreeRange returns the value of one number for both sides: the smaller preference, or the fallback, within the limits of both.
func agreeRange(what string, d, l Range, fallback int) (int, error) {
	least, most := "needs at least %d", "can do at most %d"
	switch {
	case d.Min > l.Max:
		return 0, &MismatchError{What: what, Dialer: fmt.Sprintf(least, d.Min), Listener: fmt.Sprintf(most, l.Max)}
	case l.Min > d.Max:
		return 0, &MismatchError{What: what, Dialer: fmt.Sprintf(most, d.Max), Listener: fmt.Sprintf(least, l.Min)}
	}
	want := max(d.Want, l.Want)
	if d.Want > 0 && l.Want > 0 {
		want = min(d.Want, l.Want)
	}
	if want = cmp.Or(want, fallback); want == 0 {
		return 0, nil
	}
	return min(max(want, d.Min, l.Min), d.Max, l.Max), nil
}

// mtuWithin returns the largest MTU of at most size bytes.
func mtuWithin(size int) verbs.MTU {
	m := verbs.MTU4096
	for m > verbs.MTU256 && m.Bytes() > size {
		m--
	}
	return m
}

// commonScheme returns the dialer's first scheme that the listener also accepts.
func commonScheme(dialer, listener []ibverbx.Scheme) (ibverbx.Scheme, error) {
	for _, s := range dialer {
		if slices.Contains(listener, s) {
			return s, nil
		}
	}
	accepts := func(schemes []ibverbx.Scheme) string {
		var names []string
		for _, s := range schemes {
			names = append(names, s.String())
		}
		return "accepts " + strings.Join(names, ", ")
	}
	return 0, &MismatchError{What: "scheme", Dialer: accepts(dialer), Listener: accepts(listener)}
}

// sealed reports whether packets are sealed. It fails if one side wants sealing and the other has disabled it. A side that cannot seal,
// such as hardware, matches both.
func sealed(dialer, listener string) (bool, error) {
	wants := map[string]string{sealOn: "seals packets", sealOff: "has turned sealing off (Config.Unsealed, --unsealed)"}
	if (dialer == sealOn && listener == sealOff) || (dialer == sealOff && listener == sealOn) {
		return false, &MismatchError{What: "sealing", Dialer: wants[dialer], Listener: wants[listener]}
	}
	return dialer == sealOn && listener == sealOn, nil
}

// unsealedError returns the error of a side that requires sealing, if one of the two cannot seal.
func unsealedError(dialer bool, mine, theirs *Offer) error {
	ability := func(seal string) string {
		if seal == sealUnable {
			return "cannot: it has no TLS, or a NIC other than a software NIC over UDP"
		}
		return "can"
	}
	e := &MismatchError{What: "sealing", Dialer: "requires it (Config.RequireSealed) and " + ability(mine.Seal), Listener: ability(theirs.Seal)}
	if !dialer {
		e.Dialer, e.Listener = e.Listener, e.Dialer
	}
	return e
}

// reachable rejects rails without a common network. Lane i of one side connects to lane i of
// the other, and lanes are assigned to rails round-robin.
func reachable(dialer, listener *Offer) error {
	for i := range max(len(dialer.Rails), len(listener.Rails)) {
		d, l := dialer.Rails[i%len(dialer.Rails)], listener.Rails[i%len(listener.Rails)]
		if d.Network != l.Network {
			return &MismatchError{
				What:   "network",
				Dialer: fmt.Sprintf("has %q on %s", d.Device, d.Network), Listener: fmt.Sprintf("has %q on %s", l.Device, l.Network),
			}
		}
	}
	return nil
}
