// Command kvcache moves the KV cache of requests from a prefill process to a decode process, block by block, in host memory
// or from GPU to GPU. A batch has one completion and one notification, which the decoder gets when all blocks are in its
// cache. The decoder reads them and returns the blocks with another notification. Its memory is therefore bounded, and neither
// process polls. Both sides compare digests of every block.
//
// The program is the prefill process. It starts a second copy of itself as the decode process. With -memory cuda:0 and without
// a GPU it prints a message and exits.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"ibverbx/bootstrap"
	"ibverbx/cuda"
	"ibverbx/node"
	"ibverbx/transfer"
	"ibverbx/verbs"
)

const (
	blockBytes = 256 << 10
	pages      = 96 // blocks in the cache of each process
	requests   = 24
	// decodeEnv selects the decode process. It holds the name of the token file.
	decodeEnv = "KVCACHE_DECODE_TOKEN"
)

func main() {
	place := flag.String("memory", "host", "where both caches are: host, or a GPU such as cuda:0")
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var err error
	if token := os.Getenv(decodeEnv); token != "" {
		err = decode(ctx, token, *place)
	} else {
		err = run(ctx, os.Stdout, *place)
	}
	if errors.Is(err, cuda.ErrNoDriver) || errors.Is(err, cuda.ErrNoDevice) {
		fmt.Printf("no GPU to use: %v\n-memory host runs the example in host memory\n", err)
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "kvcache:", err)
		cancel()
		os.Exit(1)
	}
}

// handover announces the blocks of a request, or returns them.
type handover struct {
	Request int
	Pages   []int
	// Sums are the digests of the blocks, so that this example can verify the data.
	Sums []uint32 `json:",omitempty"`
}

// process is a Node with an Engine, and a cache that is a segment of it.
type process struct {
	engine *transfer.Engine
	addr   string
	mem    *verbs.Memory
	cache  *transfer.Segment
	// closers are called by close, the last one first.
	closers []func() error
}

// open starts a process whose named cache is accessible to others according to access.
func open(ctx context.Context, token, place, listen, name string, access transfer.Access) (p *process, err error) {
	p = &process{}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	if p.mem, err = p.alloc(place, pages*blockBytes); err != nil {
		return p, err
	}
	n, err := node.New(ctx, node.Config{Auth: bootstrap.Config{TokenFile: token}, Listen: listen})
	if err != nil {
		return p, err
	}
	p.closers = append(p.closers, n.Close)
	if p.engine, err = transfer.New(transfer.Config{Node: n}); err != nil {
		return p, err
	}
	p.closers = append(p.closers, func() error { return p.engine.Close(ctx) })
	if listen != "" {
		p.addr = n.Addr().String()
	}
	p.cache, err = p.engine.Adopt(name, p.mem, transfer.SegmentConfig{DefaultAccess: access, Local: name == ""})
	return p, err
}

// alloc allocates host or GPU memory.
func (p *process) alloc(place string, size int) (mem *verbs.Memory, err error) {
	if place == "host" {
		mem, err = verbs.AllocMemory(size, nil)
	} else {
		number, ok := strings.CutPrefix(place, "cuda:")
		ordinal, bad := strconv.Atoi(number)
		if !ok || bad != nil {
			return nil, fmt.Errorf("-memory %s: want host, or a GPU such as cuda:0", place)
		}
		gpu, failed := cuda.Open(ordinal)
		if failed != nil {
			return nil, failed
		}
		p.closers = append(p.closers, gpu.Close)
		mem, err = gpu.Alloc(size)
	}
	if err == nil {
		p.closers = append(p.closers, mem.Free)
	}
	return mem, err
}

func (p *process) close() error {
	var errs []error
	for _, f := range slices.Backward(p.closers) {
		errs = append(errs, f())
	}
	return errors.Join(errs...)
}

// decode is the decode process. It grants access to its cache, prints its address, and consumes announced
// blocks until the prefiller disconnects.
func decode(ctx context.Context, token, place string) (err error) {
	p, err := open(ctx, token, place, "127.0.0.1:0", "kv", transfer.Write)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	fmt.Println(p.addr) // the prefiller reads this line
	block := make([]byte, blockBytes)
	for note := range p.engine.Notifications(ctx) {
		var h handover
		if err := json.Unmarshal(note.Body, &h); err != nil {
			return err
		}
		if h.Request < 0 { // the end
			return nil
		}
		for i, page := range h.Pages { // a real decoder would read them here, or its kernels on the GPU
			if _, err := p.mem.ReadAt(block, int64(page)*blockBytes); err != nil {
				return err
			}
			if checksum(block) != h.Sums[i] {
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
func run(ctx context.Context, w io.Writer, place string) (err error) {
	dir, err := os.MkdirTemp("", "kvcache")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	token := filepath.Join(dir, "token")
	if err := os.WriteFile(token, []byte("a secret that both processes share"), 0o600); err != nil {
		return err
	}
	p, err := open(ctx, token, place, "", "", 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	decoder, addr, err := startDecoder(ctx, token, place)
	if err != nil {
		return err
	}
	if err = p.prefill(ctx, w, addr); err != nil {
		_ = decoder.Process.Kill() // it may have exited
	}
	return errors.Join(err, decoder.Wait())
}

// startDecoder starts the decode process and returns its address.
func startDecoder(ctx context.Context, token, place string) (*exec.Cmd, string, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, "", err
	}
	cmd := exec.CommandContext(ctx, self, "-memory", place)
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
func (p *process) prefill(ctx context.Context, w io.Writer, addr string) error {
	decoder, err := p.engine.Peer(ctx, addr)
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
	open, blocks, begin := 0, 0, time.Now()
	for request := range requests {
		want := 1 + rand.IntN(pages/4)
		for len(free) < want {
			back, err := p.givenBack(ctx)
			if err != nil {
				return err
			}
			free, open = append(free, back...), open-1
		}
		h := handover{Request: request, Pages: slices.Clone(free[:want])}
		free = free[want:]
		b := decoder.Batch()
		for _, page := range h.Pages {
			at := int64(page) * blockBytes
			sum, err := p.compute(at)
			if err != nil {
				return err
			}
			h.Sums = append(h.Sums, sum)
			b.Put(remote.At(at), p.cache.Slice(at, blockBytes))
		}
		if err := send(ctx, b, h); err != nil {
			return err
		}
		open, blocks = open+1, blocks+want
	}
	for ; open > 0; open-- {
		if _, err := p.givenBack(ctx); err != nil {
			return err
		}
	}
	where := "the host"
	if d := p.mem.Device(); d != nil {
		where = d.Name()
	}
	fmt.Fprintf(w, "%d requests handed over in memory of %s: %d blocks, %.0f MiB, all right, in %v\n",
		requests, where, blocks, float64(blocks)*blockBytes/(1<<20), time.Since(begin).Round(time.Millisecond))
	return send(ctx, decoder.Batch(), handover{Request: -1})
}

// givenBack waits for blocks that the decoder has read.
func (p *process) givenBack(ctx context.Context) ([]int, error) {
	note, err := p.engine.Recv(ctx)
	if err != nil {
		return nil, err
	}
	var h handover
	err = json.Unmarshal(note.Body, &h)
	return h.Pages, err
}

// compute stands in for the model's kernels: it fills a block of the cache. A program with real kernels
// synchronizes their stream before it sends their output.
func (p *process) compute(at int64) (sum uint32, err error) {
	block := make([]byte, blockBytes)
	for i := 0; i < len(block); i += 4096 {
		block[i] = byte(rand.Uint32())
	}
	_, err = p.mem.WriteAt(block, at)
	return checksum(block), err
}
