package perf_test

import (
	"errors"
	"reflect"
	"testing"

	"ibverbx"
	"ibverbx/internal/perf"
	"ibverbx/verbs"
)

func TestTransport(t *testing.T) {
	for _, tt := range []struct {
		cfg  perf.Config
		want perf.Transport // empty: refused
	}{
		{perf.Config{}, perf.TransportRC},
		{perf.Config{Transport: perf.TransportUC}, perf.TransportUC},
		{perf.Config{Connection: verbs.UC}, perf.TransportRC},
		{perf.Config{Connection: verbs.UC, Transport: perf.TransportUC}, ""},
		{perf.Config{Op: perf.Send, Connection: verbs.UD, Transport: perf.TransportUC}, ""},
		{perf.Config{Transport: perf.TransportRaw}, ""},
		{perf.Config{Transport: "tcp"}, ""},
	} {
		c, err := tt.cfg.Complete()
		var refused *perf.ConfigError
		if (tt.want == "") != errors.As(err, &refused) || (tt.want != "" && c.Transport != tt.want) {
			t.Errorf("%+v: got transport %q and %v, want %q", tt.cfg, c.Transport, err, tt.want)
		}
	}
}

// wishing keeps what a test wanted of the NICs.
type wishing struct {
	*partner
	wish *perf.Wish
}

func (w wishing) Open(wish perf.Wish) ([]ibverbx.RailConfig, error) {
	*w.wish = wish
	return w.partner.Open(wish)
}

// The client says what makes QPs reliable, and how many lanes there are: both ends open their
// NICs accordingly.
func TestTransportIsTheClients(t *testing.T) {
	for _, transport := range []perf.Transport{perf.TransportRC, perf.TransportUC} {
		ends := partners(t, 2)
		var wishes [2]perf.Wish
		served := make(chan error, 1)
		go func() {
			r, err := perf.NewServer(t.Context(), wishing{ends[1], &wishes[1]}, perf.Config{})
			if err == nil && r.Head().Transport != transport {
				t.Errorf("the server reports transport %s, want %s", r.Head().Transport, transport)
			}
			served <- err
		}()
		r, err := perf.NewClient(t.Context(), wishing{ends[0], &wishes[0]}, perf.Config{Rails: 2, QPs: 6, Transport: transport})
		if other := <-served; err != nil || other != nil {
			t.Fatalf("%s: got %v and %v, want no errors", transport, err, other)
		}
		if r.Head().Transport != transport {
			t.Errorf("the client reports transport %s, want %s", r.Head().Transport, transport)
		}
		want := perf.Wish{Rails: 2, Transport: transport, Lanes: 6}
		if lent := wishes[1].Memory; lent <= 0 || lent >= 256<<20 {
			t.Errorf("the server lends its NICs %d bytes, want what its buffers leave of 256 MiB", lent)
		}
		wishes[1].Memory = 0
		if !reflect.DeepEqual(wishes[0], want) || !reflect.DeepEqual(wishes[1], want) {
			t.Errorf("the ends opened NICs for %+v and %+v, want %+v", wishes[0], wishes[1], want)
		}
	}
}
