//go:build linux

package nccl_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"ibverbx/nccl"
)

// TestOtherCore: a plugin beside the core of another build, or one that lacks functions, has no devices and says why.
func TestOtherCore(t *testing.T) {
	l := library(t)
	shim, err := filepath.Abs("../../nccl/shim")
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct{ source, want string }{
		"other build": {`
			#include "seam.h"
			#define OTHER(name, params) int32_t ibx_nccl_##name params { return IBX_SEAM + 1; }
			IBX_NCCL_CORE(OTHER)
		`, "another build"},
		"functions missing": {"int ibx_nccl_seam(void) { return 0; }", "undefined symbol"},
	} {
		t.Run(name, func(t *testing.T) {
			other := nccl.Library{Dir: t.TempDir()}
			source := filepath.Join(other.Dir, "core.c")
			if err := os.WriteFile(source, []byte(tt.source), 0o644); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(l.Plugin(), other.Plugin()); err != nil {
				t.Fatal(err)
			}
			cc := exec.CommandContext(t.Context(), "cc", "-shared", "-fPIC", "-I"+shim, "-o", filepath.Join(other.Dir, "libibverbx-nccl.so"), source)
			if out, err := cc.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			out, err := exec.CommandContext(t.Context(), l.CheckProgram(), other.Plugin(), "refused").CombinedOutput()
			if err != nil || !strings.Contains(string(out), "not in use") || !strings.Contains(string(out), tt.want) {
				t.Errorf("%v, want success and the reason %q\n%s", err, tt.want, out)
			}
		})
	}
}
