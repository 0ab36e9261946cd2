// Package nodetest starts Nodes on software NICs for tests: [Host.Start] starts one, and closes it after the test. Tests inside package node
// cannot import it and have their own setup.
package nodetest

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"ibverbx/bootstrap"
	"ibverbx/internal/enginetest"
	"ibverbx/node"
	"ibverbx/peer"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// Host is a Node in a test.
type Host struct {
	*node.Node
	// Links are the links with a NIC of the Node, one for each rail. If empty, the Node has a NIC
	// on UDP, on the loopback.
	Links []softnic.Link
	// Wrap, if not nil, wraps the contexts of the NICs.
	Wrap func(verbs.Context) (verbs.Context, error)
	// Link is node.Config.Link, used without Links.
	Link peer.Link
	// NICs are the NICs on Links.
	NICs []*softnic.NIC
}

// Open implements node.Config.Open.
func (h *Host) Open() (nics peer.NICs, err error) {
	if len(h.Links) == 0 {
		return peer.OpenSoftNICs(netip.MustParseAddr("127.0.0.1"))()
	}
	h.NICs, nics.Rails, nics.Close, err = enginetest.OpenNICs(h.Links, softnic.Config{}, h.Wrap)
	return nics, err
}

// Config describes a Node that listens on the loopback, has one shard, is never parked and does not seal packets.
func (h *Host) Config() node.Config {
	return node.Config{
		Auth:   bootstrap.Config{InsecurePlaintextOnLoopback: true},
		Listen: "127.0.0.1:0", IdleAfter: -1, Shards: 1, Open: h.Open, Fabric: peer.Fabric{Unsealed: true, Link: h.Link},
	}
}

// Alone returns a loopback address unique to this Host, so that its port is free when a Node
// listens there again.
func Alone() string {
	return fmt.Sprintf("127.%d.%d.%d:0", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254))
}

// Start starts the Node, which is closed after the test. change, if not nil, modifies its Config.
func (h *Host) Start(t testing.TB, change func(*node.Config)) *Host {
	t.Helper()
	cfg := h.Config()
	if change != nil {
		change(&cfg)
	}
	var err error
	if h.Node, err = node.New(enginetest.Soon(t), cfg); err != nil {
		t.Fatalf("node.New: got %v, want no error", err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Errorf("Node.Close: got %v, want no error", err)
		}
	})
	return h
}
