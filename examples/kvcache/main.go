// Command kvcache moves the KV cache of requests from a prefill process to a decode process, block by block.
// A batch has one completion and one notification, which the decoder gets when all blocks are in its memory.
// The decoder reads them, and returns the blocks with another notification. So its memory is bounded, and
// neither process polls.
//
// The program is the prefill process. It starts a second copy of itself as the decode process.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"ibverbx/bootstrap"
	"ibverbx/node"
	"ibverbx/transfer"
)

const (
	blockBytes = 256 << 10
	pages      = 96 // blocks in the cache of the decoder
	requests   = 24
	// decodeEnv selects the decode process. It holds the name of the token file.
	decodeEnv = "KVCACHE_DECODE_TOKEN"
)

// handover announces the blocks of a request, or returns them.
type handover struct {
	Request int
	Pages   []int
	// Sums are the digests of the blocks, so that this example can verify the data.
	Sums []uint32 `json:",omitempty"`
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var err error
	if token := os.Getenv(decodeEnv); token != "" {
		err = decode(ctx, token)
	} else {
		err = run(ctx, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "kvcache:", err)
		cancel()
		os.Exit(1)
	}
}

// open returns a Node with an Engine.
func open(ctx context.Context, token, listen string) (*node.Node, *transfer.Engine, error) {
	n, err := node.New(ctx, node.Config{Auth: bootstrap.Config{TokenFile: token}, Listen: listen})
	if err != nil {
		return nil, nil, err
	}
	e, err := transfer.New(transfer.Config{Node: n})
	if err != nil {
		return nil, nil, errors.Join(err, n.Close())
	}
	return n, e, nil
}

// decode is the decode process. It grants access to its cache, prints its address, and consumes announced
// blocks until the prefiller disconnects.
func decode(ctx context.Context, token string) error {
	n, e, err := open(ctx, token, "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer func() { _ = errors.Join(e.Close(ctx), n.Close()) }()
	cache, err := e.Alloc("kv", pages*blockBytes, transfer.SegmentConfig{DefaultAccess: transfer.Write})
	if err != nil {
		return err
	}
	fmt.Println(n.Addr()) // the prefiller reads this line
	for note := range e.Notifications(ctx) {
		var h handover
		if err := json.Unmarshal(note.Body, &h); err != nil {
			return err
		}
		if h.Request < 0 { // the end
			return nil
		}
		for i, page := range h.Pages { // a real decoder would read them here
			if sum := checksum(cache.Bytes()[page*blockBytes:][:blockBytes]); sum != h.Sums[i] {
				return fmt.Errorf("request %d: block %d is wrong", h.Request, i)
			}
		}
		if err := send(ctx, note.Peer.Batch(), handover{Request: h.Request, Pages: h.Pages}); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// send adds a notification to a batch and does it.
func send(ctx context.Context, b *transfer.Batch, h handover) error {
	body, err := json.Marshal(h)
	if err != nil {
		return err
	}
	return b.Notify(body).Do(ctx)
}

func checksum(b []byte) uint32 { return crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)) }

// run is the prefill process.
func run(ctx context.Context, w io.Writer) (err error) {
	dir, err := os.MkdirTemp("", "kvcache")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	token := filepath.Join(dir, "token")
	if err := os.WriteFile(token, []byte("a secret that both processes share"), 0o600); err != nil {
		return err
	}
	decoder, addr, err := startDecoder(ctx, token)
	if err != nil {
		return err
	}
	n, e, err := open(ctx, token, "")
	if err == nil {
		err = prefill(ctx, w, e, addr)
		err = errors.Join(err, e.Close(ctx), n.Close())
	}
	if err != nil {
		_ = decoder.Process.Kill() // it may have exited
	}
	return errors.Join(err, decoder.Wait())
}

// startDecoder starts the decode process and returns its address.
func startDecoder(ctx context.Context, token string) (*exec.Cmd, string, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, "", err
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), decodeEnv+"="+token)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, "", err
	}
	lines := bufio.NewScanner(out)
	if !lines.Scan() {
		return nil, "", errors.Join(errors.New("the decoder says no address"), lines.Err(), cmd.Wait())
	}
	return cmd, lines.Text(), nil
}

// prefill sends requests. It tracks the decoder's free blocks, because it is the only sender.
func prefill(ctx context.Context, w io.Writer, e *transfer.Engine, addr string) error {
	cache, err := e.Alloc("", pages*blockBytes, transfer.SegmentConfig{Local: true})
	if err != nil {
		return err
	}
	decoder, err := e.Peer(ctx, addr)
	if err != nil {
		return err
	}
	remote, err := decoder.Open(ctx, "kv", transfer.Write)
	if err != nil {
		return err
	}
	free := make([]int, pages)
	for i := range free {
		free[i] = i
	}
	open, blocks := 0, 0
	giveBack := func() error {
		note, err := e.Recv(ctx)
		if err != nil {
			return err
		}
		var h handover
		if err := json.Unmarshal(note.Body, &h); err != nil {
			return err
		}
		free = append(free, h.Pages...)
		open--
		return nil
	}
	begin := time.Now()
	for request := range requests {
		want := 1 + rand.IntN(pages/4)
		for len(free) < want {
			if err := giveBack(); err != nil {
				return err
			}
		}
		h := handover{Request: request, Pages: slices.Clone(free[:want])}
		free = free[want:]
		b := decoder.Batch()
		for _, page := range h.Pages {
			at := int64(page) * blockBytes
			block := cache.Bytes()[at : at+blockBytes]
			compute(block)
			h.Sums = append(h.Sums, checksum(block))
			b.Put(remote.At(at), cache.Slice(at, blockBytes))
		}
		if err := send(ctx, b, h); err != nil {
			return err
		}
		open, blocks = open+1, blocks+want
	}
	for open > 0 {
		if err := giveBack(); err != nil {
			return err
		}
	}
	mib := float64(blocks) * blockBytes / (1 << 20)
	fmt.Fprintf(w, "%d requests handed over: %d blocks, %.0f MiB, all right, in %v\n",
		requests, blocks, mib, time.Since(begin).Round(time.Millisecond))
	return send(ctx, decoder.Batch(), handover{Request: -1})
}

// compute stands for the model.
func compute(block []byte) {
	for i := 0; i < len(block); i += 4096 {
		block[i] = byte(rand.Uint32())
	}
}
