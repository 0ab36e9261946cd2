package measure_test

import (
	"fmt"
	"strings"
	"testing"

	"ibverbx/internal/perf/measure"
	"ibverbx/peer"
)

// TestRemoteDeviceMemoryRefused: the server refuses atomics on its device memory.
func TestRemoteDeviceMemoryRefused(t *testing.T) {
	_, memory := device(t)
	client, server := both(t.Context(), partners(t, 1), measure.Config{Op: measure.Atomic}, measure.Config{Memory: [2]measure.Memory{{}, memory}})
	if client.err == nil || server.err == nil || !strings.Contains(server.err.Error(), "no atomics on memory of a device") {
		t.Errorf("got %v and %v, want errors, and the refusal of the server", client.err, server.err)
	}
}

// TestRemoteDeviceMemory: each of two processes chooses its memory, and both reports name both.
func TestRemoteDeviceMemory(t *testing.T) {
	for name, on := range map[string][2]bool{"client": {true, false}, "server": {false, true}, "both": {true, true}} {
		for _, cfg := range []measure.Config{{}, {Op: measure.Read}, {Op: measure.Send}, {Imm: true, Bidirectional: true}, {Op: measure.Read, Mode: measure.Latency}} {
			t.Run(fmt.Sprintf("%s/%s/%s", name, cfg.Op, cfg.Mode), func(t *testing.T) {
				d, memory := device(t)
				var serve measure.Config
				want := [2]string{measure.HostMemory, measure.HostMemory}
				if on[0] {
					cfg.Memory[0], want[0] = memory, d.Name()
				}
				if on[1] {
					serve.Memory[1], want[1] = memory, d.Name()
				}
				cfg.Rails, cfg.QPs, cfg.Sizes, cfg.Iterations, cfg.Check = 1, 2, []int{64, 40_000}, 70, true
				client, server := both(t.Context(), partners(t, 1), cfg, serve)
				if client.err != nil || server.err != nil {
					t.Fatalf("got %v and %v, want no errors", client.err, server.err)
				}
				for _, r := range []measure.Report{client.report, server.report} {
					if got := names(&r); got != want {
						t.Errorf("the report of the %s has memory of %v, want %v", r.Role, got, want)
					}
				}
			})
		}
	}
}

// TestRemoteDeviceCheckFinds: wrong bytes on a device are found. The client uses an address that is
// one message off.
func TestRemoteDeviceCheckFinds(t *testing.T) {
	for _, op := range []measure.Op{measure.Write, measure.Read} {
		_, memory := device(t)
		ends := partners(t, 1)
		ends[0].spoil = true
		cfg := measure.Config{Op: op, Rails: 1, QPs: 2, Sizes: []int{64}, Iterations: 64, Check: true, Memory: [2]measure.Memory{memory}}
		client, server := both(t.Context(), ends, cfg, measure.Config{Memory: [2]measure.Memory{{}, memory}})
		if client.err == nil || !strings.Contains(client.err.Error(), "--check") || server.err == nil {
			t.Errorf("%s: got %v and %v, want what --check found", op, client.err, server.err)
		}
	}
}

// TestDeviceLend: device memory counts towards a server's Config.Lend.
func TestDeviceLend(t *testing.T) {
	_, memory := device(t)
	cfg := measure.Config{Rails: 1, QPs: 1, Sizes: []int{64 << 10}, Iterations: 10}
	for _, tt := range []struct {
		serve measure.Config
		ok    bool
	}{{measure.Config{Lend: 1 << 20}, true}, {measure.Config{Lend: 1 << 20, Memory: [2]measure.Memory{{}, memory}}, false}} {
		client, server := both(t.Context(), partners(t, 1), cfg, tt.serve)
		if ok := client.err == nil && server.err == nil; ok != tt.ok {
			t.Errorf("a server that lends 1 MiB of %v: got %v and %v, want success: %v", tt.serve.Memory[1], client.err, server.err, tt.ok)
		}
	}
}

// The client selects the transport and the number of lanes; both ends open their NICs accordingly.
func TestTransportIsTheClients(t *testing.T) {
	for _, transport := range []peer.Transport{peer.TransportRC, peer.TransportUC} {
		ends := partners(t, 2)
		client, server := both(t.Context(), ends, measure.Config{Rails: 2, QPs: 6, Transport: transport, Sizes: []int{64}, Iterations: 10}, measure.Config{})
		if client.err != nil || server.err != nil {
			t.Fatalf("%s: got %v and %v, want no errors", transport, client.err, server.err)
		}
		if a, b := client.report.Transport, server.report.Transport; a != transport || b != transport {
			t.Errorf("the client and the server report transports %s and %s, want %s", a, b, transport)
		}
		if lent := ends[1].opened.Lend; lent <= 0 || lent >= 256<<20 {
			t.Errorf("the server lends its NICs %d bytes, want what its buffers leave of 256 MiB", lent)
		}
		for _, end := range ends {
			if c := &end.opened; c.Rails != 2 || c.Transport != transport || c.QPs != 6 {
				t.Errorf("an end opened %d NICs for %d lanes over %s, want 2 for 6 over %s", c.Rails, c.QPs, c.Transport, transport)
			}
		}
	}
}
