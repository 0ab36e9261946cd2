package peer_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"ibverbx"
	"ibverbx/bootstrap"
	"ibverbx/peer"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

var (
	mtus       = []int{256, 512, 1024, 2048, 4096}
	allSchemes = []ibverbx.Scheme{ibverbx.Tally, ibverbx.DQPLB, ibverbx.Spray}
)

func drawRange(t *rapid.T, name string, limit int) peer.Range {
	var r peer.Range
	r.Max = rapid.IntRange(1, limit).Draw(t, name+" max")
	r.Min = rapid.IntRange(1, min(r.Max, 1+r.Max/2)).Draw(t, name+" min")
	if rapid.Bool().Draw(t, name+" wanted") {
		r.Want = rapid.IntRange(1, limit).Draw(t, name+" want")
	}
	return r
}

func drawOffer(t *rapid.T, name string) *peer.Offer {
	o := &peer.Offer{
		Version: peer.OfferVersion, Failover: rapid.Bool().Draw(t, name+" failover"),
		Lanes: drawRange(t, name+" lanes", 64), SendDepth: drawRange(t, name+" send", 1<<16), RecvDepth: drawRange(t, name+" recv", 1<<16),
		LaneDepth: drawRange(t, name+" lane depth", 1<<10), Fragment: drawRange(t, name+" fragment", 1<<30),
	}
	o.MTU = peer.Range{Min: 256, Max: rapid.SampledFrom(mtus).Draw(t, name+" mtu"), Want: rapid.SampledFrom(append(mtus, 0)).Draw(t, name+" mtu wanted")}
	network := rapid.SampledFrom([]string{"roce", "roce", "roce", "memory"}).Draw(t, name+" network")
	for i := range rapid.IntRange(1, ibverbx.MaxRails).Draw(t, name+" rails") {
		o.Rails = append(o.Rails, peer.OfferRail{Device: fmt.Sprint("nic", i), Network: network})
	}
	o.Seal = rapid.SampledFrom([]string{"on", "on", "on", "off", "unable"}).Draw(t, name+" seal")
	schemes := rapid.Permutation(allSchemes).Draw(t, name+" schemes")
	o.Schemes = schemes[:rapid.IntRange(1, 3).Draw(t, name+" scheme count")]
	return o
}

// For any two offers the result is within the limits of both, and only a minimum exceeds a preference. A
// mismatch occurs exactly when the limits do not overlap.
func TestNegotiateProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d, l := drawOffer(t, "dialer"), drawOffer(t, "listener")
		for _, o := range []*peer.Offer{d, l} {
			if err := o.Validate(); err != nil {
				t.Fatalf("the offer %+v is refused: %v", o, err)
			}
		}
		a, err := peer.Negotiate(d, l)
		if why := mismatch(d, l); (err == nil) != (why == "") {
			t.Fatalf("Negotiate: got %+v and %v, want a mismatch of %q", a, err, why)
		} else if err != nil {
			var m *peer.MismatchError
			if !errors.As(err, &m) || !errors.Is(err, peer.ErrMismatch) || m.What != why || m.Dialer == "" || m.Listener == "" {
				t.Fatalf("the mismatch is %v, want one of %q with both sides", err, why)
			}
			return
		}
		for _, f := range []struct {
			what string
			got  int
			d, l peer.Range
			open bool
		}{
			{"lanes", a.Lanes, d.Lanes, l.Lanes, false},
			{"send depth", a.SendDepth, d.SendDepth, l.SendDepth, false},
			{"receive depth", a.RecvDepth, d.RecvDepth, l.RecvDepth, false},
			{"lane depth", a.LaneDepth, d.LaneDepth, l.LaneDepth, false},
			{"fragment size", a.FragmentSize, d.Fragment, l.Fragment, true},
			{"MTU", a.MTU.Bytes(), d.MTU, l.MTU, false},
		} {
			checkAgreed(t, f.what, f.got, f.d, f.l, f.open)
		}
		if !slices.Contains(d.Schemes, a.Scheme) || !slices.Contains(l.Schemes, a.Scheme) {
			t.Fatalf("the scheme is %s, want one of both", a.Scheme)
		}
		for _, better := range d.Schemes[:slices.Index(d.Schemes, a.Scheme)] {
			if slices.Contains(l.Schemes, better) {
				t.Fatalf("the scheme is %s, want %s, which the dialer prefers", a.Scheme, better)
			}
		}
		if a.Sealed != (d.Seal == "on" && l.Seal == "on") {
			t.Fatalf("sealed %v of %q and %q", a.Sealed, d.Seal, l.Seal)
		}
		if a.Failover != (d.Failover && l.Failover) {
			t.Fatalf("failover %v of %+v and %+v", a.Failover, d, l)
		}
	})
}

// mismatch names the value that the two offers cannot agree on, or "".
func mismatch(d, l *peer.Offer) string {
	if d.Rails[0].Network != l.Rails[0].Network {
		return "network"
	}
	if !slices.ContainsFunc(d.Schemes, func(s ibverbx.Scheme) bool { return slices.Contains(l.Schemes, s) }) {
		return "scheme"
	}
	if d.Seal != l.Seal && d.Seal != "unable" && l.Seal != "unable" {
		return "sealing"
	}
	for _, f := range []struct {
		what string
		d, l peer.Range
	}{
		{"lanes", d.Lanes, l.Lanes},
		{"send depth", d.SendDepth, l.SendDepth},
		{"receive depth", d.RecvDepth, l.RecvDepth},
		{"lane depth", d.LaneDepth, l.LaneDepth},
		{"fragment size", d.Fragment, l.Fragment},
		{"MTU", d.MTU, l.MTU},
	} {
		if f.d.Min > f.l.Max || f.l.Min > f.d.Max {
			return f.what
		}
	}
	return ""
}

func checkAgreed(t *rapid.T, what string, got int, d, l peer.Range, open bool) {
	most, need := min(d.Max, l.Max), max(d.Min, l.Min)
	if got == 0 && open && d.Want == 0 && l.Want == 0 {
		return
	}
	if got < need || got > most {
		t.Fatalf("%s is %d of %+v and %+v, want %d to %d", what, got, d, l, need, most)
	}
	for _, side := range []peer.Range{d, l} {
		if side.Want > 0 && got > max(side.Want, need) {
			t.Fatalf("%s is %d of %+v and %+v, want at most the preference", what, got, d, l)
		}
	}
	if want := max(d.Want, l.Want); min(d.Want, l.Want) == 0 && want > 0 && got != min(max(want, need), most) {
		t.Fatalf("%s is %d of %+v and %+v, want the only preference", what, got, d, l)
	}
}

func offer() *peer.Offer {
	return &peer.Offer{
		Version: peer.OfferVersion, Rails: []peer.OfferRail{{Device: "soft0", Network: "roce"}}, Schemes: allSchemes,
		Lanes: peer.Range{Min: 1, Max: 64}, SendDepth: peer.Range{Min: 1, Max: 1024}, RecvDepth: peer.Range{Min: 1, Max: 1024},
		LaneDepth: peer.Range{Min: 1, Max: 1024}, Fragment: peer.Range{Min: 1, Max: 1 << 20}, MTU: peer.Range{Min: 256, Max: 1024},
		Seal: "on",
	}
}

// A mismatch names the value and both sides' limits.
func TestMismatchSaysWhatAndWhere(t *testing.T) {
	for _, tt := range []struct {
		spoil func(d, l *peer.Offer)
		want  []string
	}{
		{func(d, l *peer.Offer) { d.Lanes.Min, d.Lanes.Max, l.Lanes.Max = 8, 16, 4 }, []string{"lanes", "dialer needs at least 8", "listener can do at most 4"}},
		{func(d, l *peer.Offer) { l.MTU.Min, l.MTU.Max, d.MTU.Max = 4096, 4096, 1024 }, []string{"MTU", "dialer can do at most 1024", "listener needs at least 4096"}},
		{func(d, l *peer.Offer) { d.Schemes, l.Schemes = allSchemes[:1], allSchemes[1:] }, []string{"scheme", "dialer accepts tally", "listener accepts dqplb, spray"}},
		{func(d, _ *peer.Offer) { d.Seal = "off" }, []string{"sealing", "dialer has turned sealing off", "listener seals packets"}},
		{func(_, l *peer.Offer) { l.Rails[0] = peer.OfferRail{Device: "mlx5_0", Network: "infiniband"} }, []string{"network", `"soft0" on roce`, `"mlx5_0" on infiniband`}},
	} {
		d, l := offer(), offer()
		tt.spoil(d, l)
		_, err := peer.Negotiate(d, l)
		if !errors.Is(err, peer.ErrMismatch) {
			t.Errorf("%v: got %v, want a mismatch", tt.want, err)
			continue
		}
		for _, want := range tt.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("the mismatch is %q, want it to say %q", err, want)
			}
		}
	}
	a, err := peer.Negotiate(offer(), offer())
	want := peer.Agreement{Lanes: 4, SendDepth: 256, RecvDepth: 256, LaneDepth: 128, MTU: verbs.MTU1024, Sealed: true}
	if err != nil || a != want {
		t.Errorf("without preferences: got %+v, %v, want %+v", a, err, want)
	}
}

// A peer cannot exhaust this side's memory by preferring many deep lanes. If both sides prefer
// them, they get them.
func TestDeepLanesAreBounded(t *testing.T) {
	wide := func() *peer.Offer {
		o := offer()
		o.Lanes.Max, o.LaneDepth.Max = 4094, 1<<15
		return o
	}
	for name, tt := range map[string]struct {
		spoil func(d, l *peer.Offer)
		depth int // 0 for a mismatch
	}{
		"one wants":    {func(d, _ *peer.Offer) { d.Lanes.Want, d.LaneDepth.Want = 4094, 1<<15 }, 64},
		"shallow":      {func(d, _ *peer.Offer) { d.Lanes.Want = 4094 }, 64},
		"a few":        {func(d, _ *peer.Offer) { d.Lanes.Want, d.LaneDepth.Want = 4, 1<<15 }, 1 << 15},
		"both want":    {func(d, l *peer.Offer) { d.Lanes.Want, d.LaneDepth.Want, l.LaneDepth.Want = 1000, 1<<15, 1024 }, 1024},
		"one needs":    {func(d, _ *peer.Offer) { d.Lanes.Want, d.LaneDepth.Min = 1000, 1<<15 }, 0},
		"the other is": {func(_, l *peer.Offer) { l.Lanes.Want, l.LaneDepth.Want = 1000, 1<<15 }, 262},
	} {
		d, l := wide(), wide()
		tt.spoil(d, l)
		a, err := peer.Negotiate(d, l)
		if a.LaneDepth != tt.depth || (tt.depth == 0) != errors.Is(err, peer.ErrMismatch) {
			t.Errorf("%s: got a lane depth of %d and %v, want %d", name, a.LaneDepth, err, tt.depth)
		}
	}
}

// TestLaterMessages: optional fields of a later version are ignored in offers and regions, at every depth.
func TestLaterMessages(t *testing.T) {
	good, err := json.Marshal(offer())
	if err != nil {
		t.Fatalf("Marshal: got %v, want no error", err)
	}
	want, err := peer.DecodeOffer(good)
	if err != nil {
		t.Fatalf("DecodeOffer: got %v, want no error", err)
	}
	later := strings.NewReplacer(`{"version":`, `{"colour":{"red":[1]},"version":`, `{"device":`, `{"colour":"red","device":`, `{"want":`, `{"colour":null,"want":`)
	if got, err := peer.DecodeOffer([]byte(later.Replace(string(good)))); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("DecodeOffer of a later offer: got %+v, %v, want %+v", got, err, want)
	}
	const regions = `{"colour":1,"regions":[{"colour":2,"name":"a","addr":4096,"length":4096,"rkeys":[1,2]}]}`
	if got, err := peer.DecodeRegions([]byte(regions), 2); err != nil || got["a"].Length != 4096 {
		t.Errorf("DecodeRegions of later regions: got %+v, %v, want no error", got, err)
	}
}

// A peer's offer is either rejected or valid and survives a round trip.
func FuzzOffer(f *testing.F) {
	good, err := json.Marshal(offer())
	if err != nil {
		f.Fatalf("Marshal: got %v, want no error", err)
	}
	f.Add(good)
	f.Add([]byte(strings.Replace(string(good), `"version":3`, `"version":3,"version":3`, 1)))
	f.Add([]byte(strings.Replace(string(good), `"max":64`, `"max":64000`, 1)))
	f.Fuzz(func(t *testing.T, b []byte) {
		o, err := peer.DecodeOffer(b)
		if err != nil {
			return
		}
		if err := o.Validate(); err != nil {
			t.Errorf("%s is accepted but not valid: %v", b, err)
		}
		text, err := json.Marshal(o)
		if err != nil {
			t.Fatalf("Marshal: got %v, want no error", err)
		}
		if again, err := peer.DecodeOffer(text); err != nil || !reflect.DeepEqual(again, o) {
			t.Errorf("%s is written back as %s, %v", b, text, err)
		}
		if a, err := peer.Negotiate(o, offer()); err == nil && (a.Lanes < 1 || a.Lanes > 64) {
			t.Errorf("%s leads to %+v", b, a)
		}
	})
}

func FuzzRegions(f *testing.F) {
	f.Add([]byte(`{"regions":[{"name":"a","addr":4096,"length":4096,"rkeys":[1,2]}]}`))
	f.Add([]byte(`{"regions":[]}`))
	f.Add([]byte(`{"regions":[{"name":"a","addr":18446744073709551615,"length":4096,"rkeys":[1,2]}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		regions, err := peer.DecodeRegions(b, 2)
		if err != nil {
			return
		}
		for name, r := range regions {
			if len(r.RKeys) != 2 || r.Length == 0 || r.Addr+r.Length < r.Addr || len(name) > 64 {
				t.Errorf("%s is accepted as %+v", b, r)
			}
		}
	})
}

// TestLongDeviceName: a side whose device has a long name connects, even if the offer cuts the name within a character.
func TestLongDeviceName(t *testing.T) {
	n := newNetwork(1)
	d, l := mustMeet(t, config(n.open(1, softnic.Config{Name: "x" + strings.Repeat("é", 40)})), config(n.open(1)))
	write(t, d, l, 1)
}

// TestConnectCloses: Connect closes the connection if the Context is nil, as after every error.
func TestConnectCloses(t *testing.T) {
	l, err := bootstrap.Listen(t.Context(), "127.0.0.1:0", plain)
	if err != nil {
		t.Fatalf("Listen: got %v, want no error", err)
	}
	defer func() { _ = l.Close() }()
	conn, err := bootstrap.Dial(t.Context(), l.Addr().String(), plain)
	if err != nil {
		t.Fatalf("Dial: got %v, want no error", err)
	}
	defer func() { _ = conn.Close() }()
	var none context.Context
	if _, err := peer.Connect(none, conn, true, peer.Config{Auth: plain}); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("Connect: got %v, want %v", err, verbs.ErrInvalid)
	}
	if conn.Err() == nil {
		t.Error("the connection is open, want it closed")
	}
}
