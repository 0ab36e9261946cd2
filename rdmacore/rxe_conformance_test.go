//go:build linux && cgo && !386 && !arm && !mips && !mipsle

package rdmacore_test

import (
	"bytes"
	"os"
	"regexp"
	"testing"

	"ibverbx/rdmacore"
	"ibverbx/verbs"
	"ibverbx/verbs/verbstest"
)

// rxeDevices returns the Soft-RoCE devices of the test machine by name.
func rxeDevices(tb testing.TB, cfg rdmacore.Config) map[string]*rdmacore.Device {
	tb.Helper()
	if os.Getenv("IBVERBX_TEST_RXE") != "1" {
		tb.Skip("needs the Soft-RoCE devices of test/rxe (IBVERBX_TEST_RXE=1)")
	}
	lib, err := rdmacore.Load(cfg)
	if err != nil {
		tb.Fatalf("Load = %v, want the library of the test machine", err)
	}
	tb.Cleanup(func() {
		if err := lib.Close(); err != nil {
			tb.Errorf("close the library: %v", err)
		}
	})
	devices, err := lib.Devices()
	if err != nil {
		tb.Fatalf("Devices = %v, want rxe0 and rxe1", err)
	}
	byName := map[string]*rdmacore.Device{}
	for _, d := range devices {
		byName[d.Name()] = d
	}
	return byName
}

// openRXE opens a device for the duration of the test.
func openRXE(tb testing.TB, d *rdmacore.Device) verbs.Context {
	tb.Helper()
	if d == nil {
		tb.Fatal("a device is nil, want rxe0 and rxe1 to be there")
	}
	ctx, err := d.Open()
	if err != nil {
		tb.Fatalf("Open of %s = %v, want a context", d.Name(), err)
	}
	tb.Cleanup(func() {
		if err := ctx.Close(); err != nil {
			tb.Errorf("close %s: %v", d.Name(), err)
		}
	})
	return ctx
}

func runRXE(t *testing.T, a, b string, cfg rdmacore.Config, departures map[string]string) {
	for _, s := range rxeSubstitutes {
		t.Logf("substitute %q for %q: %s", s.reported, s.right, s.reason)
	}
	verbstest.Run(t, func(tb testing.TB) verbstest.Pair {
		devices := rxeDevices(tb, cfg)
		return verbstest.Pair{A: openRXE(tb, devices[a]), B: openRXE(tb, devices[b]), Departures: departures, Substitutes: substitutes()}
	})
}

// TestVersionsRXE logs the versions under test, for docs/conformance.md.
func TestVersionsRXE(t *testing.T) {
	if rxeDevices(t, rdmacore.Config{})["rxe0"] == nil { // loads the library
		t.Fatal("no device rxe0, want the test machine")
	}
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	ok(t, err, "read the release of the kernel")
	maps, err := os.ReadFile("/proc/self/maps")
	ok(t, err, "read the mappings")
	library := regexp.MustCompile(`libibverbs\.so[.0-9]*`).Find(maps)
	if library == nil {
		t.Fatal("no libibverbs is mapped, want the library of the test machine")
	}
	t.Logf("version of Linux: %s", bytes.TrimSpace(release))
	t.Logf("version of rdma-core: %s", library)
}

// TestConformanceRXE runs the conformance suite on one Soft-RoCE device.
func TestConformanceRXE(t *testing.T) { runRXE(t, "rxe0", "rxe0", rdmacore.Config{}, rxeLoopback) }

// TestConformanceRXEPair runs it between two devices.
func TestConformanceRXEPair(t *testing.T) {
	runRXE(t, "rxe0", "rxe1", rdmacore.Config{}, rxeDepartures)
}

// TestConformanceRXEPlain runs it with plain CQs.
func TestConformanceRXEPlain(t *testing.T) {
	runRXE(t, "rxe0", "rxe0", rdmacore.Config{PlainCQ: true}, rxeLoopback)
}
