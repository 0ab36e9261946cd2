package dropin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fake creates empty files named like the library's.
func fake(t *testing.T) Library {
	t.Helper()
	l := Library{t.TempDir()}
	for _, name := range shared().Files {
		if err := os.WriteFile(filepath.Join(l.Dir, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return l
}

// TestLibraryEnv: the library is preloaded once, before other preloaded libraries. NCCL's settings are not overridden.
func TestLibraryEnv(t *testing.T) {
	l := Library{"/opt/ibverbx"}
	const own = "/opt/ibverbx/libibverbx-preload.so:/opt/ibverbx/libibverbs.so.1:/opt/ibverbx/libibverbs.so"
	for before, want := range map[string]string{"": own, "/lib/jemalloc.so": own + ":/lib/jemalloc.so", own: own} {
		env, err := l.Env([]string{"A=b", "LD_PRELOAD=" + before})
		if err != nil || fmt.Sprint(env) != "[LD_PRELOAD="+want+" NCCL_GIN_TYPE=0 NCCL_NET_MERGE_LEVEL=LOC]" {
			t.Errorf("Env with LD_PRELOAD=%q = %q, %v, want %q", before, env, err, want)
		}
	}
	for given, want := range map[string]string{"NCCL_GIN_TYPE=2": "NCCL_NET_MERGE_LEVEL=LOC", "NCCL_NET_MERGE_LEVEL=": "NCCL_GIN_TYPE=0"} {
		env, err := l.Env([]string{given})
		if err != nil || fmt.Sprint(env) != "[LD_PRELOAD="+own+" "+want+"]" {
			t.Errorf("Env with %s = %q, %v, want %s", given, env, err, want)
		}
	}
	if _, err := (Library{"/home/a b"}).Env(nil); err == nil || !strings.Contains(err.Error(), LibraryVariable) {
		t.Errorf("Env of a directory with a space = %v, want an error that says what to do", err)
	}
}

// TestFindNamed: the directory named by the variable is used unchanged.
func TestFindNamed(t *testing.T) {
	l := fake(t)
	var notes bytes.Buffer
	got, err := Find(context.Background(), func(name string) (string, bool) { return l.Dir, name == LibraryVariable }, &notes)
	if err != nil || got != l || notes.Len() > 0 {
		t.Errorf("Find = %v, %v, and it said %q, want %v", got, err, &notes, l)
	}
}

// TestCannotBuild: without rdma-core the error names the package to install.
func TestCannotBuild(t *testing.T) {
	if got := shared().Needs(context.Background(), "/no/such/compiler"); !strings.Contains(got, "libibverbs-dev") {
		t.Errorf("Needs with an unusable compiler = %q, want the package to install", got)
	}
}

// TestCheckProgram: a program that would not load the library is refused with a reason.
func TestCheckProgram(t *testing.T) {
	dir := t.TempDir()
	script := filepath.Join(dir, "script")
	if err := os.WriteFile(script, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := CheckProgram(script); err != nil {
		t.Errorf("CheckProgram of a script = %v", err)
	}
	if err := CheckProgram(filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("CheckProgram of no file = %v", err)
	}
	for name, want := range map[string]string{"": "statically linked", "/lib64/ld-linux-x86-64.so.2": "", "/lib/ld-musl-x86_64.so.1": "musl"} {
		path := filepath.Join(dir, "elf")
		if err := os.WriteFile(path, elfWith(name), 0o755); err != nil {
			t.Fatal(err)
		}
		err := CheckProgram(path)
		if (want == "") != (err == nil) || (want != "" && (!errors.Is(err, ErrProgram) || !strings.Contains(err.Error(), want))) {
			t.Errorf("CheckProgram of a program with interpreter %q = %v, want %q", name, err, want)
		}
	}
	if err := os.Chmod(script, 0o755|os.ModeSetuid); err != nil {
		t.Fatal(err)
	}
	if err := checkProgram(script, 1000); !errors.Is(err, ErrProgram) || !strings.Contains(err.Error(), "setuid") {
		t.Errorf("CheckProgram of a setuid program = %v, want ErrProgram", err)
	}
	if err := checkProgram(script, 0); err != nil {
		t.Errorf("CheckProgram of a setuid program for root = %v, want nil", err)
	}
}

// elfWith returns a 64-bit executable with an interpreter, or without one if the name is empty.
func elfWith(interpreter string) []byte {
	var b bytes.Buffer
	put := func(size int, values ...uint64) {
		for _, v := range values {
			for i := range size {
				b.WriteByte(byte(v >> (8 * i)))
			}
		}
	}
	b.WriteString("\x7fELF\x02\x01\x01" + strings.Repeat("\x00", 9))
	put(2, 2, 62)
	put(4, 1)
	put(8, 0, 64, 0)
	put(4, 0)
	put(2, 64, 56, 1, 0, 0, 0)
	kind := uint64(1) // PT_LOAD
	if interpreter != "" {
		kind = 3 // PT_INTERP
	}
	put(4, kind, 4)
	put(8, 120, 0, 0, uint64(len(interpreter)+1), uint64(len(interpreter)+1), 1)
	b.WriteString(interpreter + "\x00")
	return b.Bytes()
}
