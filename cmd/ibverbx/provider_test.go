package main

import (
	"bytes"
	"strings"
	"testing"
)

// TestAutoSaysWhy: auto prints which NICs it selects.
func TestAutoSaysWhy(t *testing.T) {
	for _, args := range []string{"perf -s 8 -n 100 --provider auto", "devices --provider auto"} {
		var out, stderr bytes.Buffer
		status := run(t.Context(), strings.Fields(args), streams{out: &out, err: &stderr})
		if status != exitOK || !strings.HasPrefix(stderr.String(), "No RDMA ") &&
			!strings.HasPrefix(stderr.String(), "Using RDMA device ") {
			t.Errorf("ibverbx %s: status %d, stderr %q; want the choice", args, status, stderr.String())
		}
	}
}

// TestNoSuchDevice: an unknown provider or device fails the command, with the reason and the next step.
func TestNoSuchDevice(t *testing.T) {
	for _, args := range []string{
		"perf -s 8 -n 100 --provider rdmacore --devices =nothere0",
		"devices --provider rdmacore --devices =nothere0",
		"perf -s 8 -n 100 --devices =nothere0",
	} {
		status, out, stderr := command(t.Context(), append(strings.Fields(args), "--provider", "rdmacore")...)
		if status == exitOK || out != "" || !strings.HasPrefix(stderr, "ibverbx: ") || len(stderr) < 40 {
			t.Errorf("ibverbx %s: status %d, stdout %q, stderr %q; want a reason", args, status, out, stderr)
		}
	}
}
