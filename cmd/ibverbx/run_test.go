package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"ibverbx/dropin"
	"ibverbx/internal/enginetest"
)

// library makes a directory that looks like that of the library, and names it to `ibverbx run`.
func library(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"libibverbs.so.1", "libibverbs.so", "libibverbx-core.so", "libibverbx-preload.so"} {
		enginetest.WantOK(t, "WriteFile", os.WriteFile(filepath.Join(dir, name), nil, 0o644))
	}
	t.Setenv(dropin.LibraryVariable, dir)
	return dir
}

// TestRunEnv: --env prints what a user can set instead, with the flags and what was set before.
func TestRunEnv(t *testing.T) {
	dir := library(t)
	t.Setenv("LD_PRELOAD", "")
	t.Setenv("IBVERBX_COUNT", "2")
	t.Setenv("IBVERBX_DEVICES", "mlx5_0") // for other commands
	preload := "LD_PRELOAD=" + dir + "/libibverbx-preload.so:" + dir + "/libibverbs.so.1:" + dir + "/libibverbs.so\n" +
		"NCCL_GIN_TYPE=0\nNCCL_NET_MERGE_LEVEL=LOC\n"
	for flags, want := range map[string]string{
		"--loss 0.1%":                              "IBVERBX_COUNT=2\nIBVERBX_LOSS=0.001\n",
		"--impair loss=0.1%":                       "IBVERBX_COUNT=2\nIBVERBX_LOSS=0.001\n",
		"--loss 0.1% --impair delay=1ms":           "IBVERBX_COUNT=2\nIBVERBX_LOSS=0.001\nIBVERBX_DELAY=1ms\n",
		"--reorder 1% --delay 50us":                "IBVERBX_COUNT=2\nIBVERBX_REORDER=0.01\nIBVERBX_DELAY=50µs\n",
		"--impair duplicate=1%,corrupt=0.5":        "IBVERBX_COUNT=2\nIBVERBX_DUPLICATE=0.01\nIBVERBX_CORRUPT=0.5\n",
		"--impair jitter=1s,rate=1MiB --link udp":  "IBVERBX_COUNT=2\nIBVERBX_LINK=udp\nIBVERBX_JITTER=1s\nIBVERBX_RATE=1048576\n",
		"--count 3":                                "IBVERBX_COUNT=3\n",
		"--devices 3":                              "IBVERBX_COUNT=3\n",
		"--link shm":                               "IBVERBX_COUNT=2\nIBVERBX_LINK=shm\n",
		"--link auto":                              "IBVERBX_COUNT=2\n",
		"--count 3 --addr 10.0.0.1,10.0.0.2 --env": "IBVERBX_ADDR=10.0.0.1,10.0.0.2\nIBVERBX_COUNT=3\n",
	} {
		if out := succeed(t, append([]string{"run", "--env"}, strings.Fields(flags)...)...); out != preload+want {
			t.Errorf("run --env %s prints\n%s\nwant\n%s", flags, out, preload+want)
		}
	}
	t.Setenv("IBVERBX_IMPAIR", "duplicate=1%")
	if out := succeed(t, "run", "--env"); out != preload+"IBVERBX_COUNT=2\nIBVERBX_DUPLICATE=0.01\n" {
		t.Errorf("run --env with IBVERBX_IMPAIR prints\n%s", out)
	}
	t.Setenv("IBVERBX_IMPAIR", "duplicate=1%,loss=1%,delay=1ms")
	const both = "IBVERBX_COUNT=2\nIBVERBX_LOSS=0.05\nIBVERBX_DUPLICATE=0.01\n"
	if out := succeed(t, "run", "--env", "--loss", "5%", "--delay", "0"); out != preload+both {
		t.Errorf("run --env --loss 5%% --delay 0 with IBVERBX_IMPAIR prints\n%s", out)
	}
	t.Setenv("IBVERBX_LINK", "shm")
	refused(t, "run --env --loss 1%", "IBVERBX_LINK=shm: use udp or auto to capture or impair packets")
	t.Setenv("IBVERBX_MTU", "1500")
	refused(t, "run --env", "IBVERBX_MTU=1500: use 256")
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
		{[]string{"run", "--count", "17", "--", "ls"}, exitUsage, "--count 17: use 1 to 16"},
		{[]string{"run", "--devices", "mlx5_0,mlx5_1", "--", "ls"}, exitUsage, "--devices mlx5_0,mlx5_1: use --count for the number of devices, 1 to 16"},
		{[]string{"run", "--count", "1", "--addr", "10.0.0.1,10.0.0.2", "--", "ls"}, exitUsage, "--count 1: use at least 2, one device per address"},
		{[]string{"run", "--delay", "soon", "--", "ls"}, exitUsage, "--delay soon: use 0 to 1m, such as 50us"},
		{[]string{"run", "--link", "tcp", "--", "ls"}, exitUsage, "--link tcp: use auto, shm or udp"},
		{[]string{"run", "--link", "shm", "--pcap", "x", "--", "ls"}, exitUsage, "--link shm: use udp or auto to capture or impair packets"},
		{[]string{"run", "--impair", "loss=2", "--", "ls"}, exitUsage, "--impair loss=2: loss=2: use a part of the packets, such as 1%"},
		{[]string{"run", "--impair", "rail=1,loss=1%", "--", "ls"}, exitUsage, "use faults without rail="},
		{[]string{"run", "--impair", "loss=1%", "--impair", "delay=1ms", "--", "ls"}, exitUsage, "use one --impair with all faults"},
		{[]string{"run", "--", "no-such-program"}, exitFailure, "no-such-program"},
	} {
		fails(t, tt.status, tt.want, tt.args...)
	}
}

// TestRunStarts: the program takes the place of the command, with its arguments, its status and the variables.
func TestRunStarts(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the library exists on Linux only")
	}
	dir := library(t)
	exe, err := os.Executable()
	enginetest.WantOK(t, "Executable", err)
	cmd := exec.CommandContext(t.Context(), exe, "run", "--count", "3", "--", "sh", "-c", `echo "$IBVERBX_COUNT $LD_PRELOAD $1"; exit 7`, "sh", "--flag")
	cmd.Env = append(os.Environ(), asCommand+"=1", "LD_PRELOAD=")
	out, err := cmd.Output()
	want := "3 " + dir + "/libibverbx-preload.so:" + dir + "/libibverbs.so.1:" + dir + "/libibverbs.so --flag\n"
	if cmd.ProcessState.ExitCode() != 7 || string(out) != want {
		t.Errorf("the program ended with %v and printed %q, want status 7 and %q", err, out, want)
	}
}

// TestRunOverrides: a flag with the default value overrides a variable of the environment, for example that of an outer `ibverbx run`.
func TestRunOverrides(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the library exists on Linux only")
	}
	dir := library(t)
	exe, err := os.Executable()
	enginetest.WantOK(t, "Executable", err)
	const script = `echo "$IBVERBX_LOSS,$IBVERBX_GIDS,$IBVERBX_LINK,$IBVERBX_COUNT,$IBVERBX_STATS,$IBVERBX_LIB"`
	cmd := exec.CommandContext(t.Context(), exe, "run", "--loss", "0", "--gids", "ip", "--link", "auto", "--stats", "0", "--", "sh", "-c", script)
	cmd.Env = append(os.Environ(), asCommand+"=1", "LD_PRELOAD=", "IBVERBX_LOSS=1%", "IBVERBX_GIDS=port", "IBVERBX_LINK=udp", "IBVERBX_COUNT=2", "IBVERBX_STATS=1")
	out, err := cmd.Output()
	if want := ",,,2,," + dir + "\n"; err != nil || string(out) != want {
		t.Errorf("the program got %q, %v, want %q", out, err, want)
	}
}
