package main

import (
	"net"
	"strings"

	"github.com/spf13/cobra"

	"ibverbx/bootstrap"
	"ibverbx/internal/perf"
)

// defaultPort is where the server of perf listens, as perftest's does.
const defaultPort = "18515"

// authFlags say how two processes meet.
type authFlags struct {
	token, cert, key, ca, name string
	plaintext, anywhere        bool
}

func (f *authFlags) define(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.StringVar(&f.token, "token-file", "", "`file` with a secret that both sides share, 16 bytes or more")
	fl.StringVar(&f.ca, "ca", "", "`file` with the certificate of the authority that signed both sides' (ibverbx cert makes one)")
	fl.StringVar(&f.cert, "cert", "", "`file` with this side's certificate")
	fl.StringVar(&f.key, "key", "", "`file` with the key of --cert")
	fl.StringVar(&f.name, "server-name", "", "`name` in the server's certificate, if it is not the host that is dialed")
	fl.BoolVar(&f.plaintext, "insecure-plaintext-on-loopback", false, "no TLS and no proof, between loopback addresses: whoever reaches the port is let in")
	fl.BoolVar(&f.anywhere, "insecure-plaintext-on-any-network", false, "with the flag above: on every address; keys can be read and forged on the way")
}

// config returns what the flags say. Without any it is an error that says what to do.
func (f *authFlags) config() (bootstrap.Config, error) {
	if *f == (authFlags{}) || (*f == authFlags{name: f.name}) {
		return bootstrap.Config{}, &perf.ConfigError{
			Where: "another host", Problem: "nothing says how the two sides prove who they are",
			Fix: "give both --token-file with the same secret (head -c 32 /dev/urandom | base64 > token), or --ca, --cert and --key (ibverbx cert makes them)",
		}
	}
	return bootstrap.Config{
		TokenFile: f.token, CertFile: f.cert, KeyFile: f.key, CAFile: f.ca, ServerName: f.name,
		InsecurePlaintextOnLoopback: f.plaintext, InsecurePlaintextOnAnyNetwork: f.anywhere,
	}, nil
}

// withPort adds the default port to a host that has none.
func withPort(host string) string {
	if _, _, err := net.SplitHostPort(host); err == nil {
		return host
	}
	return net.JoinHostPort(strings.Trim(host, "[]"), defaultPort)
}
