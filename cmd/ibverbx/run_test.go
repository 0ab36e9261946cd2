package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"ibverbx/dropin"
)

// library makes a directory that looks like that of the library, and names it to `ibverbx run`.
func library(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"libibverbs.so.1", "libibverbx-core.so", "libibverbx-preload.so"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv(dropin.LibraryVariable, dir)
	return dir
}

// TestRunEnv: --env prints what a user can set instead, with the flags and what was set before.
func TestRunEnv(t *testing.T) {
	dir := library(t)
	t.Setenv("LD_PRELOAD", "")
	t.Setenv("IBVERBX_DEVICES", "2")
	want := "LD_PRELOAD=" + dir + "/libibverbx-preload.so:" + dir + "/libibverbs.so.1\nIBVERBX_DEVICES=2\nIBVERBX_LOSS=0.001\n"
	if out := succeed(t, "run", "--env", "--loss", "0.1%"); out != want {
		t.Errorf("run --env prints\n%s\nwant\n%s", out, want)
	}
}

// TestRunRefuses: what cannot work is an error with the reason, before anything is built or started.
func TestRunRefuses(t *testing.T) {
	library(t)
	for _, tt := range []struct {
		args   []string
		status int
		want   string
	}{
		{[]string{"run"}, exitUsage, "no program"},
		{[]string{"run", "--env", "--", "ls"}, exitUsage, "--env starts no program"},
		{[]string{"run", "--loss", "2", "--", "ls"}, exitUsage, "--loss"},
		{[]string{"run", "--mtu", "1500", "--", "ls"}, exitUsage, "--mtu"},
		{[]string{"run", "--", "no-such-program"}, exitFailure, "no-such-program"},
	} {
		status, _, stderr := command(t.Context(), tt.args...)
		if status != tt.status || !strings.Contains(stderr, tt.want) {
			t.Errorf("ibverbx %q: status %d, %q, want %d and %q", tt.args, status, stderr, tt.status, tt.want)
		}
	}
}

// TestRunStarts: the program takes the place of the command, with its arguments, its status and the variables.
func TestRunStarts(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the library exists on Linux only")
	}
	dir := library(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe, "run", "--devices", "3", "--", "sh", "-c", `echo "$IBVERBX_DEVICES $LD_PRELOAD $1"; exit 7`, "sh", "--flag")
	cmd.Env = append(os.Environ(), asCommand+"=1", "LD_PRELOAD=")
	out, err := cmd.Output()
	want := "3 " + dir + "/libibverbx-preload.so:" + dir + "/libibverbs.so.1 --flag\n"
	if cmd.ProcessState.ExitCode() != 7 || string(out) != want {
		t.Errorf("the program ended with %v and printed %q, want status 7 and %q", err, out, want)
	}
}
