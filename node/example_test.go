package node_test

import (
	"context"
	"fmt"
	"log"
	"net/netip"

	"ibverbx/bootstrap"
	"ibverbx/node"
	"ibverbx/peer"
)

// start returns a Node with one software NIC on the loopback interface.
func start(ctx context.Context, name string) *node.Node {
	n, err := node.New(ctx, node.Config{
		Auth:   bootstrap.Config{Token: []byte("an example's token is no secret"), Name: name},
		Listen: "127.0.0.1:0",
		Open:   peer.OpenSoftNICs(netip.MustParseAddr("127.0.0.1")),
	})
	if err != nil {
		log.Fatal(err)
	}
	return n
}

// Two Nodes connect, here in one program. Package transfer or stream then moves data between them.
func Example() {
	ctx := context.Background()
	server := start(ctx, "server")
	defer server.Close()
	client := start(ctx, "client")
	defer client.Close()

	p, err := client.Peer(ctx, server.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	stats := p.Stats()
	fmt.Printf("%s is %v after %d session\n", p.Identity().Name, stats.State, stats.Sessions)
	// Output: server is ready after 1 session
}
