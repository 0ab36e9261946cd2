// Package docs checks the documentation against the code: links, commands, snippets, and the API list in
// docs/api.md. A documented command that no scenario runs needs an entry in testdata/commands.txt.
package docs

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"testing"

	"ibverbx"
	"ibverbx/bootstrap"
	"ibverbx/internal/enginetest"
	"ibverbx/node"
	"ibverbx/peer"
	"ibverbx/stream"
	"ibverbx/transfer"
	"ibverbx/verbs"
)

// TestSnippets: the Go blocks of README.md are the marked parts of this file, which are tested.
func TestSnippets(t *testing.T) {
	own, err := os.ReadFile("snippets_test.go")
	enginetest.Must(t, err)
	readme, err := os.ReadFile("../../README.md")
	enginetest.Must(t, err)
	blocks := strings.Split(string(readme), "```go\n")[1:]
	marked := strings.Split(string(own), "\t// README begins\n")[1:]
	if len(blocks) != 3 || len(marked) != len(blocks) {
		t.Fatalf("README.md has %d Go blocks and this file has %d, want 3 each", len(blocks), len(marked))
	}
	for i := range blocks {
		block, _, _ := strings.Cut(blocks[i], "```")
		code, _, _ := strings.Cut(marked[i], "\t// README ends\n")
		if want := snippet(code); block != want {
			t.Errorf("README.md, Go block %d:\n%s\nwant\n%s", i+1, block, want)
		}
	}
}

// snippet removes the indentation, error checks and linter directives from a function's code.
func snippet(code string) string {
	var b strings.Builder
	for line := range strings.Lines(code) {
		line, _, cut := strings.Cut(strings.TrimPrefix(line, "\t"), " //nolint")
		if cut {
			line += "\n"
		}
		if !strings.HasPrefix(line, "enginetest.Must(") {
			b.WriteString(line)
		}
	}
	return b.String()
}

var (
	auth     = bootstrap.Config{Token: []byte("a token of a test is not a secret")}
	loopback = peer.OpenSoftNICs(netip.MustParseAddr("127.0.0.1"))
)

// serve starts a Node, as another process does.
func serve(ctx context.Context, t *testing.T) *node.Node {
	t.Helper()
	n, err := node.New(ctx, node.Config{Auth: auth, Listen: "127.0.0.1:0", Open: loopback})
	enginetest.Must(t, err)
	t.Cleanup(func() { enginetest.Must(t, n.Close()) })
	return n
}

func TestTransferSnippet(t *testing.T) {
	ctx, listen := t.Context(), "127.0.0.1:0"
	other := serve(ctx, t)
	there, err := transfer.New(transfer.Config{Node: other})
	enginetest.Must(t, err)
	segment, err := there.Alloc("kv", 1<<20, transfer.SegmentConfig{DefaultAccess: transfer.Write})
	enginetest.Must(t, err)
	addr := other.Addr().String()
	// README begins
	n, err := node.New(ctx, node.Config{Auth: auth, Listen: listen})
	enginetest.Must(t, err)
	e, err := transfer.New(transfer.Config{Node: n})
	enginetest.Must(t, err)
	kv, err := e.Alloc("kv", 1<<20, transfer.SegmentConfig{DefaultAccess: transfer.Write})
	enginetest.Must(t, err)

	p, err := e.Peer(ctx, addr) // host:port of another process
	enginetest.Must(t, err)
	remote, err := p.Open(ctx, "kv", transfer.Write)
	enginetest.Must(t, err)
	err = p.Batch().Put(remote.At(0), kv.Slice(0, 4096)).Notify([]byte("block 0")).Do(ctx)
	enginetest.Must(t, err)
	// README ends
	got, err := there.Recv(ctx)
	enginetest.Must(t, err)
	if string(got.Body) != "block 0" || !bytes.Equal(segment.Bytes()[:4096], kv.Bytes()[:4096]) {
		t.Errorf("notification %q, want %q behind the bytes", got.Body, "block 0")
	}
	enginetest.Must(t, e.Close(ctx))
	enginetest.Must(t, there.Close(ctx))
	enginetest.Must(t, n.Close())
}

func TestStreamSnippet(t *testing.T) {
	ctx := t.Context()
	server, n := serve(ctx, t), serve(ctx, t)
	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") })
	p, err := n.Peer(ctx, server.Addr().String())
	enginetest.Must(t, err)
	// README begins
	l, err := stream.Listen(server, "http")
	enginetest.Must(t, err)
	go http.Serve(l, handler) //nolint:errcheck // it returns when l is closed
	c, err := stream.Dial(ctx, p, "http")
	enginetest.Must(t, err)
	client := &http.Client{Transport: &http.Transport{DialContext: stream.Dialer(n)}}
	// README ends
	enginetest.Must(t, c.Close())
	r, err := client.Get("http://" + server.Addr().String() + "/")
	enginetest.Must(t, err)
	body, err := io.ReadAll(r.Body)
	enginetest.Must(t, err)
	enginetest.Must(t, r.Body.Close())
	if string(body) != "hello" {
		t.Errorf("the server answers %q, want %q", body, "hello")
	}
	client.CloseIdleConnections()
	enginetest.Must(t, l.Close())
}

func TestPeerSnippet(t *testing.T) {
	ctx := t.Context()
	listener, err := peer.Listen(ctx, "127.0.0.1:0", peer.Config{Auth: auth, Regions: []peer.RegionConfig{{Name: "inbox", Size: 1 << 20}}})
	enginetest.Must(t, err)
	defer listener.Close()
	ended := make(chan error, 1)
	go func() { ended <- receive(ctx, listener) }()
	addr := listener.Addr().String()
	// README begins
	s, err := peer.Dial(ctx, addr, peer.Config{Auth: auth, Regions: []peer.RegionConfig{{Name: "outbox", Size: 1 << 20}}})
	enginetest.Must(t, err)
	wr := ibverbx.SendWR{WRID: 1, Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled, Remote: s.Remote("inbox")}
	wr.SetSGE(s.Local("outbox").SGE(0, 1<<20))
	_, err = s.QP.PostSend([]ibverbx.SendWR{wr})
	enginetest.Must(t, err)
	done := make([]ibverbx.WC, 1)
	_, err = s.CQ.Wait(ctx, done) // one completion per request, in posting order
	enginetest.Must(t, err)
	err = done[0].Err()
	enginetest.Must(t, err)
	// README ends
	enginetest.Must(t, s.WaitDone(ctx))
	enginetest.Must(t, <-ended)
	enginetest.Must(t, s.Close())
}

// receive accepts one peer and waits for its write.
func receive(ctx context.Context, l *peer.Listener) error {
	s, err := l.Accept(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	if _, err := s.QP.PostRecv([]ibverbx.RecvWR{{WRID: 1}}); err != nil {
		return err
	}
	wcs := make([]ibverbx.WC, 1)
	if _, err := s.CQ.Wait(ctx, wcs); err != nil {
		return err
	}
	if err := wcs[0].Err(); err != nil {
		return err
	}
	return s.WaitDone(ctx)
}
