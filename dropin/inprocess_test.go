//go:build linux

package dropin_test

import (
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ibverbx/dropin"
)

// TestGuest: the library works in a process that forks, handles signals, has small stacks, spins on
// memory, closes objects in the wrong order, looks for kernel files and loads libraries by name
// (testdata/guest.c).
func TestGuest(t *testing.T) {
	l := library(t)
	guest := filepath.Join(filepath.Dir(l.Dir), "guest")
	cc := exec.CommandContext(t.Context(), "cc", "-std=gnu11", "-O2", "-o", guest, "testdata/guest.c", "-libverbs", "-lpthread", "-ldl")
	if out, err := cc.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, name := range []string{"order", "fork", "signals", "stack", "spin", "events", "stale", "async", "limit", "dlopen", "memory", "lists", "chains", "files", "multicast"} {
		t.Run(name, func(t *testing.T) {
			cmd, out := command(t, l, dropin.Options{}, guest, name)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			stop := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
			defer stop.Stop()
			if err := cmd.Wait(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// TestForkWithoutDevices: the child of a process whose devices could not be created gets ENODEV (testdata/refused.c).
func TestForkWithoutDevices(t *testing.T) {
	l := library(t)
	refused := filepath.Join(filepath.Dir(l.Dir), "refused")
	if out, err := exec.CommandContext(t.Context(), "cc", "-std=gnu11", "-O2", "-o", refused, "testdata/refused.c", "-libverbs").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	cmd, out := command(t, l, dropin.Options{Addrs: []netip.Addr{netip.MustParseAddr("203.0.113.7")}}, refused)
	if err := finish(t, cmd); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestNoGoInShells: a process that does not list devices loads only the shim, not the Go runtime.
func TestNoGoInShells(t *testing.T) {
	cmd, out := command(t, library(t), dropin.Options{}, "cat", "/proc/self/maps")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	if maps := out.String(); !strings.Contains(maps, "libibverbs.so.1") || strings.Contains(maps, "libibverbx-core.so") {
		t.Errorf("a shell should have the shim and not the core:\n%s", maps)
	}
}

// TestNoCore: a shim without its core lists no devices and prints the reason.
func TestNoCore(t *testing.T) {
	l := library(t)
	dir, err := os.MkdirTemp(filepath.Dir(l.Dir), "no-core-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"libibverbs.so.1", "libibverbs.so", "libibverbx-preload.so"} {
		b, err := os.ReadFile(filepath.Join(l.Dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cmd, out := command(t, dropin.Library{Dir: dir}, dropin.Options{}, "ibv_devinfo")
	if err := cmd.Run(); err == nil || !strings.Contains(out.String(), "ibverbx: cannot load the software NIC") {
		t.Errorf("without a core: %v, want a failure and a sentence\n%s", err, out)
	}
}

// TestLoadAsNCCL: a program that opens libibverbs by name, without being linked with it, gets the
// devices of this library. The name may be the library's own, or the development link's, whether
// rdma-core's link exists or not.
func TestLoadAsNCCL(t *testing.T) {
	l := library(t)
	loader := filepath.Join(filepath.Dir(l.Dir), "loader")
	if out, err := exec.CommandContext(t.Context(), "cc", "-std=gnu11", "-O2", "-o", loader, "testdata/loader.c", "-ldl").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	stock, err := exec.CommandContext(t.Context(), "cc", "-print-file-name=libibverbs.so").Output()
	if err != nil {
		t.Fatal(err)
	}
	links, err := os.MkdirTemp(filepath.Dir(l.Dir), "links-")
	if err == nil {
		err = errors.Join(os.Chmod(links, 0o755), os.Symlink(strings.TrimSpace(string(stock)), filepath.Join(links, "libibverbs.so")))
	}
	if err != nil {
		t.Fatal(err)
	}
	for name, args := range map[string][]string{
		"development link":     {"LD_LIBRARY_PATH=" + links, loader, "libibverbs.so"},
		"no directory named":   {loader, "libibverbs.so"},
		"no development link":  {loader, "no-such-library.so"},
		"the library's SONAME": {loader, "libibverbs.so.1"},
	} {
		t.Run(name, func(t *testing.T) {
			cmd, out := command(t, l, dropin.Options{Devices: 2}, args[0], args[1:]...)
			if err := cmd.Run(); err != nil || out.String() != "soft0\nsoft1\n" {
				t.Errorf("got %v, %q, want the devices soft0 and soft1", err, out)
			}
		})
	}
}
