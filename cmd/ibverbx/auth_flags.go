package main

import (
	"net"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"ibverbx/bootstrap"
)

// defaultPort is the port of perf serve, as in perftest.
const defaultPort = "18515"

// authFlags hold the credentials with which two processes authenticate each other.
type authFlags struct {
	token, tokens, cert, key, ca, name string
	plaintext, anywhere                bool
	// variables is set if environment variables named the credentials.
	variables bool
}

// authVariable is a flag whose value an environment variable provides if no flag names credentials.
type authVariable struct {
	flag, name string
	value      *string
}

// environment returns the variables, whose values are fields of f.
func (f *authFlags) environment() []authVariable {
	return []authVariable{
		{"--token-file", "IBVERBX_TOKEN_FILE", &f.token}, {"--ca", "IBVERBX_CA", &f.ca}, {"--cert", "IBVERBX_CERT", &f.cert}, {"--key", "IBVERBX_KEY", &f.key},
	}
}

// given reports whether the flags or variables name credentials, or disable authentication.
func (f *authFlags) given() bool { return *f != authFlags{name: f.name} }

// readEnv takes the credentials from the environment unless a flag names some, so that credentials of both are never mixed.
func (f *authFlags) readEnv(s *streams) {
	if f.given() {
		return
	}
	for _, v := range f.environment() {
		if value, _ := s.lookup(v.name); value != "" {
			*v.value, f.variables = value, true
		}
	}
}

// define adds the flags of a command that may be either side.
func (f *authFlags) define(cmd *cobra.Command) {
	fl := cmd.Flags()
	f.defineBoth(fl)
	f.defineServer(fl)
	f.defineClient(fl)
}

func (f *authFlags) defineBoth(fl *pflag.FlagSet) {
	fl.StringVar(&f.token, "token-file", "", "`file` with the secret that both sides share (see ibverbx token; default IBVERBX_TOKEN_FILE)")
	fl.StringVar(&f.ca, "ca", "", "`file` with the CA certificate, instead of a token")
	fl.StringVar(&f.cert, "cert", "", "`file` with this host's certificate")
	fl.StringVar(&f.key, "key", "", "`file` with the private key of --cert, readable only by its owner")
	fl.BoolVar(&f.plaintext, "insecure-plaintext-on-loopback", false, "disable TLS and authentication on loopback addresses: any local process can connect")
	fl.BoolVar(&f.anywhere, "insecure-plaintext-on-any-network", false, "disable TLS and authentication on all addresses: anyone on the network can read and forge keys")
}

func (f *authFlags) defineServer(fl *pflag.FlagSet) {
	fl.StringVar(&f.tokens, "token-dir", "", "server: `directory` with one secret file per client, reread when it changes")
}

func (f *authFlags) defineClient(fl *pflag.FlagSet) {
	fl.StringVar(&f.name, "server-name", "", "`name` in the server's certificate, if it differs from the dialed host")
}

// config returns the configuration from flags or environment variables. Without any it refuses where, the command or host that needs
// them.
func (f *authFlags) config(s *streams, where string) (bootstrap.Config, error) {
	if f.readEnv(s); !f.given() {
		return bootstrap.Config{}, refuse(where, "it needs --token-file (the same secret on both hosts), or --ca, --cert and --key",
			"make a secret with ibverbx token FILE, or certificates with ibverbx cert")
	}
	for _, v := range f.environment()[1:] {
		if *v.value == "" || f.ca != "" && f.cert != "" && f.key != "" {
			continue
		}
		if f.variables {
			return bootstrap.Config{}, refuse(v.name+"="+*v.value, "certificates need all of IBVERBX_CA, IBVERBX_CERT and IBVERBX_KEY", "make them with: ibverbx cert")
		}
		return bootstrap.Config{}, refuse(v.flag+" "+*v.value, "certificates need all of --ca, --cert and --key", "make them with: ibverbx cert")
	}
	return bootstrap.Config{
		TokenFile: f.token, TokenDir: f.tokens, CertFile: f.cert, KeyFile: f.key, CAFile: f.ca, ServerName: f.name,
		InsecurePlaintextOnLoopback: f.plaintext, InsecurePlaintextOnAnyNetwork: f.anywhere,
	}, nil
}

// withPort adds a port to a host without one.
func withPort(host, port string) string {
	if _, _, err := net.SplitHostPort(host); err == nil {
		return host
	}
	return net.JoinHostPort(strings.Trim(host, "[]"), port)
}
