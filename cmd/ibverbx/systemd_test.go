package main

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"ibverbx/internal/enginetest"
)

// TestSystemdUnits: the command lines of the units in docs/systemd are valid, and so are the units themselves.
func TestSystemdUnits(t *testing.T) {
	units, err := filepath.Glob(docs("systemd/*.service"))
	if err != nil || len(units) != 2 {
		t.Fatalf("units: %q, %v, want those of serve and forward", units, err)
	}
	dir := t.TempDir()
	var copies []string
	for _, unit := range units {
		b, err := os.ReadFile(unit)
		enginetest.WantOK(t, "ReadFile", err)
		_, line, _ := strings.Cut(string(b), "\nExecStart=")
		line, _, _ = strings.Cut(line, "\n")
		words := strings.Fields(line)
		root := newRoot(streams{in: strings.NewReader(""), out: io.Discard, err: io.Discard})
		cmd, args, err := root.Find(words[1:])
		if err == nil {
			err = cmd.ParseFlags(args)
		}
		if err == nil {
			err = cmd.Args(cmd, cmd.Flags().Args())
		}
		if err != nil || filepath.Base(unit) != "ibverbx-"+cmd.Name()+".service" {
			t.Errorf("%s: %s is no command line of it: %v", unit, line, err)
		}
		for _, want := range []string{"LoadCredential=token:", "\nEnvironment=IBVERBX_TOKEN_FILE=%d/token\n", "\nProtectSystem=strict\n", "\nNoNewPrivileges=yes\n"} {
			if !strings.Contains(string(b), want) {
				t.Errorf("%s lacks %q", unit, strings.TrimSpace(want))
			}
		}
		to := filepath.Join(dir, filepath.Base(unit))
		enginetest.WantOK(t, "WriteFile", os.WriteFile(to, bytes.ReplaceAll(b, []byte(words[0]), []byte("/bin/true")), 0o600))
		copies = append(copies, to)
	}
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skipf("no systemd-analyze, which verifies the units: %v", err)
	}
	if out, err := exec.CommandContext(t.Context(), analyze, append([]string{"verify"}, copies...)...).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
}
