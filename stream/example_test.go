package stream_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/netip"

	"ibverbx/bootstrap"
	"ibverbx/node"
	"ibverbx/peer"
	"ibverbx/stream"
)

// start starts a Node with a software NIC on loopback.
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

// An HTTP server and client communicate over streams. Here both run in one program.
func Example() {
	ctx := context.Background()
	server, client := start(ctx, "server"), start(ctx, "client")
	defer server.Close()
	defer client.Close()

	l, err := stream.Listen(server, "http")
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	h := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello over RDMA") })
	go func() { _ = http.Serve(l, h) }() // returns when l is closed

	tr := &http.Transport{DialContext: stream.Dialer(client)}
	defer tr.CloseIdleConnections()
	r, err := (&http.Client{Transport: tr}).Get("http://" + server.Addr().String() + "/")
	if err != nil {
		log.Fatal(err)
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(r.Status, string(body))
	// Output: 200 OK hello over RDMA
}
