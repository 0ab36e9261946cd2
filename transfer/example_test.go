package transfer_test

import (
	"context"
	"fmt"
	"log"
	"net/netip"
	"os"
	"path/filepath"

	"ibverbx/bootstrap"
	"ibverbx/node"
	"ibverbx/peer"
	"ibverbx/transfer"
)

// start starts a Node with a software NIC on loopback, and an Engine.
func start(ctx context.Context, name string) (*node.Node, *transfer.Engine) {
	n, err := node.New(ctx, node.Config{
		Auth:   bootstrap.Config{Token: []byte("an example's token is no secret"), Name: name},
		Listen: "127.0.0.1:0",
		Open:   peer.OpenSoftNICs(netip.MustParseAddr("127.0.0.1")),
	})
	if err != nil {
		log.Fatal(err)
	}
	e, err := transfer.New(transfer.Config{Node: n})
	if err != nil {
		log.Fatal(err)
	}
	return n, e
}

// Two processes, here in one program: the first writes blocks into the second's memory and notifies it.
func Example() {
	ctx := context.Background()
	decodeNode, decode := start(ctx, "decode")
	defer decodeNode.Close()
	prefillNode, prefill := start(ctx, "prefill")
	defer prefillNode.Close()
	defer prefill.Close(ctx)
	defer decode.Close(ctx)

	const blockSize, blocks = 4096, 8
	cache, err := decode.Alloc("kv", blocks*blockSize, transfer.SegmentConfig{DefaultAccess: transfer.Write})
	if err != nil {
		log.Fatal(err)
	}
	kv, err := prefill.Alloc("", blocks*blockSize, transfer.SegmentConfig{Local: true})
	if err != nil {
		log.Fatal(err)
	}
	for i := range kv.Bytes() {
		kv.Bytes()[i] = byte(i / blockSize)
	}

	p, err := prefill.Peer(ctx, decodeNode.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	remote, err := p.Open(ctx, "kv", transfer.Write)
	if err != nil {
		log.Fatal(err)
	}
	b := p.Batch()
	for i := range int64(blocks) {
		b.Put(remote.At((blocks-1-i)*blockSize), kv.Slice(i*blockSize, blockSize))
	}
	if err := b.Notify([]byte("request 4711")).Do(ctx); err != nil {
		log.Fatal(err)
	}

	n, err := decode.Recv(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s: %s, first block %d, last block %d\n", n.Peer.Node().Identity().Name, n.Body, cache.Bytes()[0], cache.Bytes()[len(cache.Bytes())-1])
	// Output: prefill: request 4711, first block 7, last block 0
}

// Peers read a memory-mapped file without an extra copy on the server.
func ExampleEngine_MapFile() {
	ctx := context.Background()
	serverNode, server := start(ctx, "server")
	defer serverNode.Close()
	clientNode, client := start(ctx, "client")
	defer clientNode.Close()
	defer client.Close(ctx)
	defer server.Close(ctx)

	dir, err := os.MkdirTemp("", "mapfile")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	weights := filepath.Join(dir, "weights")
	if err := os.WriteFile(weights, []byte("layer 0, layer 1"), 0o600); err != nil {
		log.Fatal(err)
	}
	if _, err := server.MapFile("weights", weights, transfer.SegmentConfig{DefaultAccess: transfer.Read}); err != nil {
		log.Fatal(err)
	}

	p, err := client.Peer(ctx, serverNode.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	remote, err := p.Open(ctx, "weights", transfer.Read)
	if err != nil {
		log.Fatal(err)
	}
	local, err := client.Alloc("", remote.Len(), transfer.SegmentConfig{Local: true})
	if err != nil {
		log.Fatal(err)
	}
	if err := p.Get(ctx, local.Slice(0, 7), remote.At(9)).Wait(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", local.Bytes()[:7])
	// Output: layer 1
}
