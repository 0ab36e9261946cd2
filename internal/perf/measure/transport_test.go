package measure_test

import (
	"errors"
	"testing"

	"ibverbx/internal/perf/measure"
	"ibverbx/peer"
	"ibverbx/verbs"
)

func TestTransport(t *testing.T) {
	for _, tt := range []struct {
		cfg  measure.Config
		want peer.Transport // empty: refused
	}{
		{measure.Config{}, peer.TransportRC},
		{measure.Config{Transport: peer.TransportUC}, peer.TransportUC},
		{measure.Config{Connection: verbs.UC}, peer.TransportRC},
		{measure.Config{Connection: verbs.UC, Transport: peer.TransportUC}, ""},
		{measure.Config{Op: measure.Send, Connection: verbs.UD, Transport: peer.TransportUC}, ""},
		{measure.Config{Transport: measure.TransportRaw}, ""},
		{measure.Config{Transport: "tcp"}, ""},
	} {
		c, err := tt.cfg.Complete()
		var refused *measure.ConfigError
		if (tt.want == "") != errors.As(err, &refused) || (tt.want != "" && c.Transport != tt.want) {
			t.Errorf("%+v: got transport %q and %v, want %q", tt.cfg, c.Transport, err, tt.want)
		}
	}
}
