package files_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"ibverbx/bootstrap"
	"ibverbx/files"
	"ibverbx/node"
	"ibverbx/peer"
	"ibverbx/transfer"
)

// start starts a Node with a software NIC on loopback, and an Engine. closeAll closes them.
func start(ctx context.Context, name string, exports ...files.ExportConfig) (n *node.Node, f *files.Engine, closeAll func() error) {
	return startWith(ctx, bootstrap.Config{Token: []byte(exampleToken), Name: name}, files.Config{Exports: exports})
}

const exampleToken = "an example's token is no secret"

// startWith is start with two Configs. It sets Config.Transfer.
func startWith(ctx context.Context, auth bootstrap.Config, cfg files.Config) (n *node.Node, f *files.Engine, closeAll func() error) {
	n, err := node.New(ctx, node.Config{
		Auth:   auth,
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
	cfg.Transfer = e
	f, err = files.New(cfg)
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
		t := p.Get(info.Name, filepath.Join(dir, "copy"), files.TransferConfig{})
		if err := t.Wait(ctx); err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s: %d bytes, %d chunks verified\n", info.Name, t.Status().Bytes, t.Status().Chunks)
	}
	// Output: v7/model: 7 bytes, 1 chunks verified
}

// exampleDir returns a directory with files, and a function that removes it.
func exampleDir(names ...string) (dir string, remove func()) {
	dir, err := os.MkdirTemp("", "files")
	if err != nil {
		log.Fatal(err)
	}
	for _, name := range names {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			log.Fatal(err)
		}
		if err := os.WriteFile(name, []byte("contents"), 0o600); err != nil {
			log.Fatal(err)
		}
		past := time.Now().Add(-time.Hour)
		if err := os.Chtimes(name, past, past); err != nil {
			log.Fatal(err)
		}
	}
	return dir, func() { _ = os.RemoveAll(dir) }
}

// A tree is mirrored like with rsync -a --delete: the second run compares sizes and modification times, and sends only the difference.
func ExamplePeer_Get_tree() {
	ctx := context.Background()
	dir, remove := exampleDir("src/main.go", "src/sub/a.go", "src/sub/a.o")
	defer remove()
	n, _, closeServer := start(ctx, "server", files.ExportConfig{Name: "src", Path: filepath.Join(dir, "src"), DefaultAccess: files.Read})
	defer func() { _ = closeServer() }()
	_, client, closeClient := start(ctx, "client")
	defer func() { _ = closeClient() }()
	p, err := client.Peer(ctx, n.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	for range 2 {
		t := p.Get("src", filepath.Join(dir, "copy"), files.TransferConfig{Delete: true, Filter: []string{"- *.o"}})
		for s := range t.Progress(ctx, time.Second) {
			if s.Phase != transfer.Done {
				log.Printf("%d of %d bytes, %v left", s.Bytes, s.Total, s.Left)
			}
		}
		if err := t.Err(); err != nil {
			log.Fatal(err) // ErrIncomplete: some files are missing, the rest is stored
		}
		s := t.Status()
		fmt.Printf("%d sent, %d unchanged, %d deleted\n", s.Sent, s.Unchanged, s.Deleted)
	}
	// Output:
	// 2 sent, 0 unchanged, 0 deleted
	// 0 sent, 2 unchanged, 0 deleted
}

// An authorization function grants each peer access to some exports. A denied name looks like an unknown one.
func ExampleConfig_authorize() {
	ctx := context.Background()
	dir, remove := exampleDir("models/v7", "private/key")
	defer remove()
	tokens := filepath.Join(dir, "tokens") // one file per client
	if err := errors.Join(os.Mkdir(tokens, 0o700), os.WriteFile(filepath.Join(tokens, "trainer"), []byte(exampleToken), 0o600)); err != nil {
		log.Fatal(err)
	}
	n, _, closeServer := startWith(ctx, bootstrap.Config{TokenDir: tokens}, files.Config{
		Exports: []files.ExportConfig{
			{Name: "models", Path: filepath.Join(dir, "models")},
			{Name: "private", Path: filepath.Join(dir, "private")},
		},
		Authorize: func(_ context.Context, p *node.Peer, name string, _ files.Access) (files.Access, error) {
			if name == "models" && p.Identity().Token == "trainer" {
				return files.Read, nil
			}
			return 0, nil
		},
	})
	defer func() { _ = closeServer() }()
	_, client, closeClient := start(ctx, "")
	defer func() { _ = closeClient() }()
	p, err := client.Peer(ctx, n.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	err = fs.WalkDir(p.FS(ctx, ""), ".", func(name string, _ fs.DirEntry, err error) error {
		fmt.Println(name)
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	_, err = p.Stat(ctx, "private/key")
	fmt.Println("private/key:", errors.Is(err, files.ErrNotFound))
	// Output:
	// .
	// models
	// models/v7
	// private/key: true
}
