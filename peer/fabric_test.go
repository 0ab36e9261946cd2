package peer_test

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"ibverbx/peer"
	"ibverbx/verbs"
)

// TestFabricWithOpen: NICs are selected once: by Open, Rails, SharedCQ or the Fabric.
func TestFabricWithOpen(t *testing.T) {
	for name, f := range map[string]peer.Fabric{
		"Provider": {Provider: peer.ProviderSoftNIC}, "Devices": {Devices: "mlx5_0"}, "Addrs": {Addrs: []netip.Addr{netip.IPv6Loopback()}}, "RailCount": {RailCount: 2},
		"Impair": {Impair: []peer.Impair{{Loss: 0.1}}}, "Capture": {Capture: &peer.Capture{}},
	} {
		cfg := peer.Config{Open: peer.OpenSoftNICs(netip.IPv6Loopback()), Fabric: f}
		_, err := peer.Dial(t.Context(), "127.0.0.1:1", cfg)
		var wrong *peer.FabricError
		if !errors.As(err, &wrong) || wrong.Field != name || !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("Dial with Open and Fabric.%s: got %v, want a FabricError for the field", name, err)
		}
		if _, err := f.OpenWith(cfg.Open); !errors.As(err, &wrong) || wrong.Field != name {
			t.Errorf("OpenWith with Fabric.%s: got %v, want a FabricError for the field", name, err)
		}
	}
}

// TestTransportMismatch: sides with different transports do not connect, and the error names both.
func TestTransportMismatch(t *testing.T) {
	l, err := peer.Listen(t.Context(), "127.0.0.1:0", peer.Config{Auth: plain})
	if err != nil {
		t.Fatalf("Listen: got %v, want no error", err)
	}
	defer func() { _ = l.Close() }()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { _, _ = l.Accept(ctx) }()
	_, err = peer.Dial(ctx, l.Addr().String(), peer.Config{Auth: plain, Fabric: peer.Fabric{Transport: peer.TransportUC}})
	if !errors.Is(err, peer.ErrMismatch) || !strings.Contains(err.Error(), `transport: the dialer uses "uc", the listener uses "rc"`) {
		t.Errorf("Dial with uc: got %v, want a mismatch with both transports", err)
	}
}
