package files_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/netip"
	"os"
	"path/filepath"

	"ibverbx/bootstrap"
	"ibverbx/files"
	"ibverbx/node"
	"ibverbx/peer"
	"ibverbx/transfer"
)

// start starts a Node with a software NIC on loopback, and an Engine. closeAll closes them.
func start(ctx context.Context, name string, exports ...files.ExportConfig) (n *node.Node, f *files.Engine, closeAll func() error) {
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
	f, err = files.New(files.Config{Transfer: e, Exports: exports})
	if err != nil {
		log.Fatal(err)
	}
	return n, f, func() error { return errors.Join(f.Close(ctx), e.Close(ctx), n.Close()) }
}

// One process exports a directory, and another downloads its files. Here both run in one program.
func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "files")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.WriteFile(filepath.Join(dir, "model"), []byte("weights"), 0o600); err != nil {
		log.Fatal(err)
	}
	n, _, closeServer := start(ctx, "server", files.ExportConfig{Name: "v7", Path: dir, DefaultAccess: files.Read})
	defer func() { _ = closeServer() }()
	_, client, closeClient := start(ctx, "client")
	defer func() { _ = closeClient() }()

	p, err := client.Peer(ctx, n.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	list, err := p.List(ctx, "v7")
	if err != nil {
		log.Fatal(err)
	}
	for _, info := range list {
		t := p.GetFile(info.Name, filepath.Join(dir, "copy"), files.TransferConfig{})
		if err := t.Wait(ctx); err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s: %d bytes, %d chunks verified\n", info.Name, t.Status().Bytes, t.Status().Chunks)
	}
	// Output: v7/model: 7 bytes, 1 chunks verified
}
