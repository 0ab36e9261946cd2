package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"ibverbx/internal/enginetest"
	"ibverbx/nccl"
)

// plugin makes a directory that looks like that of the plugin, and names it to `ibverbx nccl`. The check program is a script.
func plugin(t *testing.T, script string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "it's")
	enginetest.WantOK(t, "Mkdir", os.Mkdir(dir, 0o755))
	for _, name := range []string{"libnccl-net-ibverbx.so", "libibverbx-nccl.so", "ibverbx-nccl-check"} {
		enginetest.WantOK(t, "WriteFile", os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script), 0o755))
	}
	t.Setenv(nccl.LibraryVariable, dir)
	return dir
}

// TestNCCLEnv: a shell that evaluates the output of --env has the variables.
func TestNCCLEnv(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("needs a shell")
	}
	dir := plugin(t, "")
	sh := exec.CommandContext(t.Context(), "sh", "-c", succeed(t, "nccl", "--env")+`echo "$NCCL_NET_PLUGIN $NCCL_NET_PLUGIN_REF_COUNT $NCCL_NET"`)
	out, err := sh.Output()
	if want := dir + "/libnccl-net-ibverbx.so 1 ibverbx\n"; err != nil || string(out) != want {
		t.Errorf("the shell prints %q, %v, want %q", out, err, want)
	}
}

// TestNCCLRefuses: what cannot work is an error with the reason.
func TestNCCLRefuses(t *testing.T) {
	plugin(t, "")
	refused(t, "nccl", "no program")
	refused(t, "nccl --env --check", "exclude each other")
	refused(t, "nccl --env -- ls", "--env and --check start no program")
	t.Setenv("IBVERBX_LINK", "shm")
	refused(t, "nccl --env", `IBVERBX_LINK is "shm": want auto or udp`)
}

// TestNCCLCheck: --check tries every table version, and fails with the program.
func TestNCCLCheck(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("needs a shell")
	}
	plugin(t, `echo "table $2"`)
	out := succeed(t, "nccl", "--check")
	for _, want := range []string{"table 8\n", "table 9\n", "table 10\n", "table 11\n", "table 12\n", "NCCL 2.30:"} {
		if !strings.Contains(out, want) {
			t.Errorf("--check lacks %q:\n%s", want, out)
		}
	}
	plugin(t, "exit 1")
	if status, _, stderr := command(t.Context(), "nccl", "--check"); status != exitFailure || !strings.Contains(stderr, "does not work for NCCL 2.20") {
		t.Errorf("--check with a failing program: status %d, %q, want %d and the release", status, stderr, exitFailure)
	}
}

// TestSignalStopsTools: a signal that stops the check of the plugin, or a build, is reported as such.
func TestSignalStopsTools(t *testing.T) {
	plugin(t, "exit 0")
	t.Setenv("IBVERBX_LIB", t.TempDir()) // not built yet
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("interrupt signal received"))
	for _, args := range []string{"nccl --check", "run --env"} {
		if status, _, stderr := command(ctx, strings.Fields(args)...); status != exitInterrupted || !strings.HasSuffix(stderr, "ibverbx: interrupted\n") {
			t.Errorf("%s: status %d, %q, want %d and that it was interrupted", args, status, stderr, exitInterrupted)
		}
	}
}

// TestNCCLStarts: the program takes the place of the command, with its arguments and the variables.
func TestNCCLStarts(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the plugin exists on Linux only")
	}
	dir := plugin(t, "")
	exe, err := os.Executable()
	enginetest.WantOK(t, "Executable", err)
	cmd := exec.CommandContext(t.Context(), exe, "nccl", "--", "sh", "-c", `echo "$NCCL_NET_PLUGIN $1"; exit 7`, "sh", "--flag")
	cmd.Env = append(os.Environ(), asCommand+"=1")
	out, err := cmd.Output()
	if want := dir + "/libnccl-net-ibverbx.so --flag\n"; cmd.ProcessState.ExitCode() != 7 || string(out) != want {
		t.Errorf("the program ended with %v and printed %q, want status 7 and %q", err, out, want)
	}
}
