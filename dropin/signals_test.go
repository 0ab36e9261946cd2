//go:build linux

package dropin_test

import (
	"errors"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"ibverbx/dropin"
)

// TestSignals: handlers may exit, jump and call verbs while their thread executes a verb. They
// interrupt blocking calls, and programs see their own actions (testdata/signals.c). The signals
// hit each process at different moments.
func TestSignals(t *testing.T) {
	l := library(t)
	program := filepath.Join(filepath.Dir(l.Dir), "signals")
	cc := exec.CommandContext(t.Context(), "cc", "-std=gnu11", "-O2", "-o", program, "testdata/signals.c", "-libverbs", "-lpthread")
	if out, err := cc.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	const runs, status = 30, 7
	for _, name := range []string{"exit in reg_mr", "exit in poll", "verbs in handler", "siglongjmp", "event", "threads", "information", "actions"} {
		t.Run(name, func(t *testing.T) {
			for range runs {
				cmd, out := command(t, l, dropin.Options{}, program, name)
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				stop := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
				err := cmd.Wait()
				stop.Stop()
				if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != status {
					t.Fatalf("%v, want exit status %d\n%s", err, status, out)
				}
			}
		})
	}
}
