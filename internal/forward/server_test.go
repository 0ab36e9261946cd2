package forward

import (
	"net"
	"strings"
	"testing"
)

// TestCauseHidesNameServers: a Client learns why a target's name cannot be resolved, but no address of the host's network.
func TestCauseHidesNameServers(t *testing.T) {
	for _, c := range []struct {
		err  net.DNSError
		want string
	}{
		{net.DNSError{Err: "no such host", Name: "db", Server: "192.0.2.1:53", IsNotFound: true}, "no such host"},
		{net.DNSError{Err: "read udp 192.0.2.7:4000->192.0.2.1:53: i/o timeout", Name: "db", Server: "192.0.2.1:53", IsTimeout: true}, "timed out"},
		{net.DNSError{Err: "server misbehaving", Name: "db", Server: "192.0.2.1:53", IsTemporary: true}, "cannot be resolved"},
	} {
		got := cause(&net.OpError{Op: "dial", Net: "tcp", Err: &c.err})
		if !strings.Contains(got, c.want) || strings.Contains(got, "192.0.2") {
			t.Errorf("cause(%v) = %q, want %q without addresses", &c.err, got, c.want)
		}
	}
}
