package reliable_test

import (
	"errors"
	"strings"
	"testing"

	"ibverbx/reliable"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

func noUC(cfg *verbs.QPConfig) bool { return cfg.Type == verbs.UC }

func onlyRC(cfg *verbs.QPConfig) bool { return cfg.Type != verbs.RC }

// TestNoCarrier: Wrap returns ErrNoCarrier for a device without UC and UD, or without the type that is asked for, whether it
// announces that or refuses such QPs. The context remains usable.
func TestNoCarrier(t *testing.T) {
	for name, tt := range map[string]struct {
		refuse  func(*verbs.QPConfig) bool
		hide    verbs.Capabilities
		carrier verbs.QPType
	}{
		"says so":      {onlyRC, verbs.CapUC | verbs.CapUD, 0},
		"refuses":      {onlyRC, 0, 0},
		"says no UC":   {noUC, verbs.CapUC, verbs.UC},
		"refuses UC":   {noUC, 0, verbs.UC},
		"says no UD":   {nil, verbs.CapUD, verbs.UD},
		"UC and no UD": {nil, verbs.CapUD, 0},
		"UC and no RC": {nil, verbs.CapRC, verbs.UC},
	} {
		t.Run(name, func(t *testing.T) {
			_, inner := openWithout(t, softnic.NewMemoryLink(nil), tt.refuse, tt.hide)
			ctx, err := reliable.Wrap(inner, reliable.Config{Carrier: tt.carrier})
			if !errors.Is(err, reliable.ErrNoCarrier) || !errors.Is(err, verbs.ErrNotSupported) || ctx != nil {
				t.Fatalf("Wrap = %v, %v, want nil and ErrNoCarrier, which is ErrNotSupported", ctx, err)
			}
			if !strings.Contains(err.Error(), "FallBackToRC") {
				t.Fatalf("the error %q does not say what to do", err)
			}
			if _, err := inner.QueryDevice(); err != nil {
				t.Fatalf("the context that could not be wrapped: %v, want it open", err)
			}
		})
	}
}

// TestCarrierChoice: UC is preferred to UD, and Config.Carrier chooses.
func TestCarrierChoice(t *testing.T) {
	reliable.OverUC(t, "this choice")
	for name, tt := range map[string]struct {
		refuse     func(*verbs.QPConfig) bool
		hide       verbs.Capabilities
		asked, got verbs.QPType
	}{
		"everything":   {nil, 0, 0, verbs.UC},
		"no UC":        {nil, verbs.CapUC, 0, verbs.UD},
		"UC refused":   {noUC, 0, 0, verbs.UD},
		"no RC":        {nil, verbs.CapRC, 0, verbs.UD},
		"UD asked for": {nil, 0, verbs.UD, verbs.UD},
		"UC asked for": {nil, 0, verbs.UC, verbs.UC},
		"RC asked for": {nil, 0, verbs.RC, verbs.RC},
	} {
		t.Run(name, func(t *testing.T) {
			_, inner := openWithout(t, softnic.NewMemoryLink(nil), tt.refuse, tt.hide)
			ctx, err := reliable.Wrap(inner, reliable.Config{Carrier: tt.asked})
			must(t, err)
			r := ctx.(reliable.TransportReporter)
			if got := r.Transport(); got != tt.got || r.Carrier() != strings.ToLower(got.String()) {
				t.Errorf("the carrier is %v, %q, want %v", got, r.Carrier(), tt.got)
			}
		})
	}
	_, inner := openWithout(t, softnic.NewMemoryLink(nil), nil, 0)
	if _, err := reliable.Wrap(inner, reliable.Config{Carrier: 1}); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("Wrap with Carrier 1 = %v, want ErrInvalid", err)
	}
}

// TestCarriersDiffer: ends with different carriers refuse each other, and the error names both.
func TestCarriersDiffer(t *testing.T) {
	reliable.OverUC(t, "this choice")
	link := softnic.NewMemoryLink(nil)
	uc, ud := newSide(t, link, reliable.Config{}, 4096), newDatagramSide(t, link, reliable.Config{}, 4096)
	for _, ends := range [][2]*side{{uc, ud}, {ud, uc}} {
		ep, err := ends[1].qp.Endpoint()
		must(t, err)
		err = ends[0].qp.Connect(ep)
		if !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(), "uc") || !strings.Contains(err.Error(), "ud") {
			t.Errorf("Connect = %v, want ErrInvalid and both carriers", err)
		}
	}
}

// TestFallBack moves data between two contexts that fell back to RC, and checks that they report it.
func TestFallBack(t *testing.T) {
	reliable.OverUC(t, "this choice")
	link := softnic.NewMemoryLink(nil)
	var s [2]*side
	for i := range s {
		nic, inner := openWithout(t, link, onlyRC, 0)
		s[i] = newSideOn(t, nic, inner, reliable.Config{FallBackToRC: true}, 1<<16)
		if c := s[i].ctx.(reliable.TransportReporter).Transport(); c != verbs.RC {
			t.Fatalf("Transport = %v, want RC", c)
		}
		attr, err := s[i].ctx.QueryDevice()
		must(t, err)
		if !strings.HasPrefix(attr.Provider, "RC, instead of reliable, over ") {
			t.Fatalf("the provider is %q, want it to say that this is RC", attr.Provider)
		}
		if next, pending := s[i].ctx.(reliable.Stepper).Step(); pending {
			t.Fatalf("Step = %d, true, want nothing to do", next)
		}
	}
	connect(t, s[0], s[1])
	for op := verbs.OpRDMAWrite; op <= verbs.OpRDMARead; op++ {
		transfer(t, s[0], s[1], op, 50_000)
	}
	again, err := s[0].ctx.Device().Open()
	if c, ok := again.(reliable.TransportReporter); err == nil && (!ok || c.Transport() != verbs.UC) {
		t.Fatalf("a context of the device below, which has UC, is %T, want one with paths", again)
	}
	must(t, err)
	must(t, again.Close())
}

// TestFallBackMeetsPaths: an end with paths rejects a peer that fell back, with a descriptive error.
func TestFallBackMeetsPaths(t *testing.T) {
	reliable.OverUC(t, "this choice")
	link := softnic.NewMemoryLink(nil)
	nic, inner := openWithout(t, link, onlyRC, 0)
	a := newSideOn(t, nic, inner, reliable.Config{FallBackToRC: true}, 4096)
	b := newSide(t, link, reliable.Config{FallBackToRC: true}, 4096)
	if c := b.ctx.(reliable.TransportReporter).Transport(); c != verbs.UC {
		t.Fatalf("Transport = %v, want UC where there is UC", c)
	}
	ep, err := a.qp.Endpoint()
	must(t, err)
	if err := b.qp.Connect(ep); !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(), "fell back") {
		t.Fatalf("Connect = %v, want ErrInvalid and the reason", err)
	}
}
