package measure

import (
	"math"
	"testing"

	"ibverbx"
)

// checkCarried compares PerLane and PerRail with the results: all bytes were carried, by permitted
// lanes, without the warm-up.
func checkCarried(t *testing.T, cfg *Config, rep *Report) {
	t.Helper()
	var want Carried // total bytes and number of messages
	directions := uint64(1)
	if cfg.Mode == Latency && cfg.op().received() {
		directions = 2 // an iteration is a message in each
	}
	for _, r := range rep.Results {
		want.Bytes += directions * uint64(r.Iterations) * uint64(r.Size)
		want.Fragments += directions * uint64(r.Iterations)
	}
	if lanes := wantLanes(cfg); len(rep.PerLane) != lanes || len(rep.PerRail) != rep.Rails {
		t.Fatalf("%d lanes and %d rails in the report, want %d and %d", len(rep.PerLane), len(rep.PerRail), lanes, rep.Rails)
	}
	var sum Carried
	rails := make([]Carried, rep.Rails)
	for i := range rep.PerLane {
		l := &rep.PerLane[i]
		sum.add(l.Carried)
		rails[l.Rail].add(l.Carried)
		checkLane(t, cfg, i, l)
	}
	if sum.Fragments < want.Fragments || sum.Doorbells == 0 || sum.CQEs == 0 || sum.Refusals != 0 {
		t.Errorf("the lanes report %+v for %d messages, want a fragment for each, doorbells, CQEs and no refusals", sum, want.Fragments)
	}
	if sum.Bytes != want.Bytes {
		t.Errorf("the lanes carried %d bytes, want %d", sum.Bytes, want.Bytes)
	}
	shares := 0.0
	for i := range rails {
		rails[i].Share = rep.PerRail[i].Share
		shares += rails[i].Share
		if got := rep.PerRail[i]; got.Carried != rails[i] || got.Rail != i || got.Device == "" || got.Peer == "" || got.Device == got.Peer {
			t.Errorf("rail %d is reported as %+v, want the sum of its lanes, %+v, and two devices", i, got, rails[i])
		}
	}
	if sum.Bytes > 0 && math.Abs(shares-1) > 1e-5 {
		t.Errorf("the shares of the rails add up to %v, want 1", shares)
	}
}

// wantLanes returns the number of QPs per side: several lanes add one for messages, and Spray adds
// one for notifications.
func wantLanes(cfg *Config) int {
	c := cfg.withDefaults()
	switch {
	case !c.virtual() || c.direct():
		return c.QPs
	case c.Scheme == ibverbx.Spray:
		return c.QPs + 2
	}
	return c.QPs + 1
}

// checkLane checks the index and role of one lane, and that it was used exactly if its role carries
// the operation.
func checkLane(t *testing.T, cfg *Config, i int, l *Lane) {
	t.Helper()
	c := cfg.withDefaults()
	role := "data"
	switch i {
	case c.QPs:
		role = "message"
	case c.QPs + 1:
		role = "notify"
	}
	if l.Lane != i || l.Role != role || l.QPN == 0 {
		t.Errorf("lane %d is %+v, want the role %s and a QP number", i, *l, role)
	}
	message := c.Op == Send || c.Op == Atomic
	used := map[string]bool{"data": !message || wantLanes(cfg) == c.QPs, "message": message, "notify": c.Imm}[role]
	if got := l.Fragments > 0; got != used {
		t.Errorf("%s of %s: lane %d (%s) carried %d fragments, want some: %v", c.op(), c.Scheme, i, role, l.Fragments, used)
	}
}
