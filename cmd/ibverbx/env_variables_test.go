package main

import (
	"bytes"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"ibverbx/dropin"
	"ibverbx/nccl"
	"ibverbx/settings"
)

// withVariables runs a command with only these variables.
func withVariables(t *testing.T, variables []string, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, err bytes.Buffer
	lookup := func(name string) (string, bool) {
		for _, v := range variables {
			if value, ok := strings.CutPrefix(v, name+"="); ok {
				return value, true
			}
		}
		return "", false
	}
	s := streams{in: strings.NewReader(""), out: &out, err: &err, provider: providerSoftNIC, env: lookup, environ: variables}
	return run(t.Context(), args, s), out.String(), err.String()
}

// TestUnknownVariable: an unknown variable is refused, with the nearest name. Empty variables, test variables and other programs' variables are
// ignored. doctor reports it.
func TestUnknownVariable(t *testing.T) {
	for _, tt := range []struct{ variable, want string }{
		{"IBVERBX_TCLAS=8", "did you mean IBVERBX_TCLASS?"},
		{"IBVERBX_TOKENFILE=t", "did you mean IBVERBX_TOKEN_FILE?"},
		{"IBVERBX_LINKS=udp", "did you mean IBVERBX_LINK?"},
		{"IBVERBX_CERTS=c", "did you mean IBVERBX_CERT?"},
	} {
		status, out, stderr := withVariables(t, []string{"HOME=/", tt.variable}, "version")
		if status != exitUsage || out != "" || !strings.Contains(stderr, tt.want) {
			t.Errorf("%s: status %d, %q, %q, want %d and %q", tt.variable, status, out, stderr, exitUsage, tt.want)
		}
	}
	for _, fine := range []string{"IBVERBX_TCLASS=8", "IBVERBX_NONE=", "IBVERBX_TEST_ANY=1", "IBVERBX_CI=1", "IBVERB=1", "IBVERBX_CA=c", "IBVERBX_COUNT=2"} {
		if status, _, stderr := withVariables(t, []string{fine}, "version"); status != exitOK {
			t.Errorf("%s: status %d, %q, want %d", fine, status, stderr, exitOK)
		}
	}
	found := judgeEnv([]string{"IBVERBX_TCLAS=8", "IBVERBX_TOKEN_FILE=t"})
	if len(found) != 2 || !strings.Contains(found[0].Do[0], "IBVERBX_TCLASS") || !strings.Contains(found[1].Found, "--token-file") {
		t.Errorf("doctor finds %+v, want the nearest name, and the flag of a credential", found)
	}
}

// TestVariables: package settings lists the variables of all readers, so that each of them refuses or reports the same ones.
func TestVariables(t *testing.T) {
	read := slices.Concat(dropin.Variables(), nccl.Variables())
	for _, s := range settings.All() {
		read = append(read, s.Env)
	}
	for _, v := range new(authFlags).environment() {
		read = append(read, v.name)
	}
	slices.Sort(read)
	listed := settings.Variables()
	slices.Sort(listed)
	if read = slices.Compact(read); !slices.Equal(read, listed) {
		t.Errorf("settings.Variables returns %q, want what settings, dropin, nccl and the commands read, %q", listed, read)
	}
}

// TestCredentialsByVariable: IBVERBX_TOKEN_FILE, or IBVERBX_CA, IBVERBX_CERT and IBVERBX_KEY, are enough for all commands. Credentials named by
// flags replace all of them.
func TestCredentialsByVariable(t *testing.T) {
	token, other := newToken(t, "a secret of this test, long enough"), newToken(t, "another secret, also long enough")
	dir := t.TempDir()
	content(t, filepath.Join(dir, "f"), 100)
	t.Setenv("IBVERBX_TOKEN_FILE", token)
	_, addr := serveFiles(t, "127.0.0.1:0", dir+"=d")
	variables := []string{"IBVERBX_TOKEN_FILE=" + token}
	for _, args := range [][]string{{"ls", addr}, {"get", addr, "d/f", t.TempDir()}, {"ls", addr, "--token-file", token}} {
		if status, _, stderr := withVariables(t, variables, args...); status != exitOK {
			t.Errorf("%q: status %d, %q, want %d", args, status, stderr, exitOK)
		}
	}
	perf := begin(t, "perf", "serve", "--listen", "127.0.0.1:0", "--once")
	_, at := served(t, perf)
	if status, _, stderr := withVariables(t, variables, "perf", at, "-n", "5", "-s", "8"); status != exitOK {
		t.Errorf("perf: status %d, %q, want %d", status, stderr, exitOK)
	}
	if status, _, stderr := withVariables(t, variables, "perf", "-n", "5", "-s", "8"); status != exitOK {
		t.Errorf("perf in one process, which needs no credentials: status %d, %q, want %d", status, stderr, exitOK)
	}
	for _, tt := range []struct {
		variables []string
		args      []string
		status    int
		want      string
	}{
		{nil, nil, exitUsage, "needs --token-file"},
		{variables, []string{"--token-file", other}, exitFailure, "rejected the token"},
		{[]string{"IBVERBX_TOKEN_FILE=" + other}, nil, exitFailure, "rejected the token"},
		{[]string{"IBVERBX_CA=ca.pem", "IBVERBX_KEY=k"}, nil, exitUsage, "IBVERBX_CA=ca.pem: certificates need all of IBVERBX_CA, IBVERBX_CERT and IBVERBX_KEY"},
		{append([]string{"IBVERBX_CA=ca.pem"}, variables...), []string{"--ca", "x"}, exitUsage, "--ca x: certificates need all of --ca"},
	} {
		status, _, stderr := withVariables(t, tt.variables, append([]string{"ls", addr}, tt.args...)...)
		if status != tt.status || !strings.Contains(stderr, tt.want) {
			t.Errorf("%q %q: status %d, %q, want %d and %q", tt.variables, tt.args, status, stderr, tt.status, tt.want)
		}
	}
}
