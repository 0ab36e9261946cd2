package main

import (
	"net"
	"strings"

	"github.com/spf13/cobra"

	"ibverbx/bootstrap"
)

// defaultPort is where the server of perf listens. perftest uses the same.
const defaultPort = "18515"

// authFlags say how two processes authenticate each other.
type authFlags struct {
	token, tokens, cert, key, ca, name string
	plaintext, anywhere                bool
}

func (f *authFlags) define(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.StringVar(&f.token, "token-file", "", "`file` with the secret that both sides share (ibverbx token makes one); others must not be able to read it")
	fl.StringVar(&f.tokens, "token-dir", "", "with --server: `directory` of files with a secret for each client; files may be added and removed at any time")
	fl.StringVar(&f.ca, "ca", "", "`file` with the certificate of the authority that signed those of both sides (ibverbx cert makes one)")
	fl.StringVar(&f.cert, "cert", "", "`file` with this side's certificate")
	fl.StringVar(&f.key, "key", "", "`file` with the key of --cert; others must not be able to read it")
	fl.StringVar(&f.name, "server-name", "", "`name` in the server's certificate, if it is not the host that is dialed")
	fl.BoolVar(&f.plaintext, "insecure-plaintext-on-loopback", false, "no TLS and no authentication between loopback addresses: every local process may connect")
	fl.BoolVar(&f.anywhere, "insecure-plaintext-on-any-network", false, "with the flag above: on every address; everyone on the network can read and forge keys")
}

// config returns what the flags say. Without any it refuses where, the flag or the host that needs
// them.
func (f *authFlags) config(where string) (bootstrap.Config, error) {
	if *f == (authFlags{}) || (*f == authFlags{name: f.name}) {
		return bootstrap.Config{}, refuse(where, "it needs --token-file (the same secret on both hosts), or --ca, --cert and --key",
			"make a secret with ibverbx token FILE, or certificates with ibverbx cert")
	}
	return bootstrap.Config{
		TokenFile: f.token, TokenDir: f.tokens, CertFile: f.cert, KeyFile: f.key, CAFile: f.ca, ServerName: f.name,
		InsecurePlaintextOnLoopback: f.plaintext, InsecurePlaintextOnAnyNetwork: f.anywhere,
	}, nil
}

// withPort adds a port to a host that has none.
func withPort(host, port string) string {
	if _, _, err := net.SplitHostPort(host); err == nil {
		return host
	}
	return net.JoinHostPort(strings.Trim(host, "[]"), port)
}
