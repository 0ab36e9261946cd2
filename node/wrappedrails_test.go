package node_test

import (
	"fmt"
	"sync"
	"testing"

	"ibverbx/internal/enginetest"
	"ibverbx/internal/enginetest/nodetest"
	"ibverbx/node"
	"ibverbx/reliable"
	"ibverbx/verbs"
)

// TestManyPeersOnWrappedRails: a Node on two rails wrapped by package reliable with its default Config serves many peers.
func TestManyPeersOnWrappedRails(t *testing.T) {
	for _, carrier := range []verbs.QPType{verbs.UC, verbs.UD} {
		t.Run(carrier.String(), func(t *testing.T) { manyPeers(t, carrier, 64) })
	}
}

func manyPeers(t *testing.T, carrier verbs.QPType, peers int) {
	links := enginetest.MemoryLinks(2)
	start := func(cfg reliable.Config) *nodetest.Host {
		h := &nodetest.Host{Links: links, Wrap: func(inner verbs.Context) (verbs.Context, error) { return reliable.Wrap(inner, cfg) }}
		return h.Start(t, nil)
	}
	server := start(reliable.Config{Carrier: carrier})
	var all sync.WaitGroup
	for i := range peers {
		client := start(reliable.Config{Carrier: carrier, RecvBytes: 64 * 4096, ChunkBytes: 4096})
		all.Go(func() {
			if _, err := client.Peer(enginetest.Soon(t), server.Addr().String()); err != nil {
				t.Errorf("peer %d: got %v, want no error", i, err)
			}
		})
	}
	all.Wait()
	if t.Failed() {
		return
	}
	enginetest.Eventually(t, fmt.Sprintf("%d peers are ready", peers), func() bool { return server.Stats().Ready == peers })
	for _, p := range server.Peers() {
		if p.State() != node.StateReady {
			t.Errorf("%v is %v, want %v", p, p.State(), node.StateReady)
		}
	}
}
