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

// TestNoUC: Wrap returns ErrNoUC for a device without UC, whether it announces that or refuses such QPs. The
// context remains usable.
func TestNoUC(t *testing.T) {
	for name, hide := range map[string]verbs.Capabilities{"says so": verbs.CapUC, "refuses": 0} {
		t.Run(name, func(t *testing.T) {
			_, inner := openPoor(t, softnic.NewMemoryLink(nil), noUC, hide)
			ctx, err := reliable.Wrap(inner, reliable.Config{})
			if !errors.Is(err, reliable.ErrNoUC) || !errors.Is(err, verbs.ErrNotSupported) || ctx != nil {
				t.Fatalf("Wrap = %v, %v, want nil and ErrNoUC, which is ErrNotSupported", ctx, err)
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

// TestNoUD: a device without UD is refused for that reason, and can fall back.
func TestNoUD(t *testing.T) {
	_, inner := openPoor(t, softnic.NewMemoryLink(nil), nil, verbs.CapUD)
	if _, err := reliable.Wrap(inner, reliable.Config{}); !errors.Is(err, verbs.ErrNotSupported) || errors.Is(err, reliable.ErrNoUC) {
		t.Fatalf("Wrap = %v, want ErrNotSupported and not ErrNoUC", err)
	}
	ctx, err := reliable.Wrap(inner, reliable.Config{FallBackToRC: true})
	must(t, err)
	must(t, ctx.Close())
}

// TestFallBack moves data between two contexts that fell back to RC, and checks that they report it.
func TestFallBack(t *testing.T) {
	link := softnic.NewMemoryLink(nil)
	var s [2]*side
	for i := range s {
		nic, inner := openPoor(t, link, noUC, 0)
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
	link := softnic.NewMemoryLink(nil)
	nic, inner := openPoor(t, link, noUC, 0)
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
