//go:build linux && cgo && !386 && !arm && !mips && !mipsle

package cuda_test

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"ibverbx/cuda"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// farTask is the task of the other process in tests over shared memory. Its socket is descriptor 3.
// Cards, orders and answers use standard input and output.
const farTask = "far"

// farSize is the size of most regions of a side. farSizeVariable passes a different one to the
// other process.
const (
	farSize         = 1 << 18
	farSizeVariable = "IBVERBX_TEST_FAR_SIZE"
)

// Regions of each side.
const (
	inDevice = iota // adopted from the middle of an allocation
	inSmall         // an allocation that does not start at a page
	inHost          // shared memory
	farRegions
)

// farCard contains the connection data of a side.
type farCard struct {
	Endpoint verbs.Endpoint
	Addr     [farRegions]uint64
	RKey     [farRegions]uint32
}

// order is a request from the near side to the far one.
type order struct {
	// Do is "fill" (with bytes derived from Seed), "sum", "receive", "handle", "close", "free" or
	// "hide" (from direct copies) for Region, or "base".
	Do     string
	Region int
	Seed   int
}

// answer is the far side's response: the digest or handle of the region, or a received immediate.
type answer struct {
	Sum    [sha256.Size]byte
	Imm    uint32
	Handle []byte
	Err    string
}

// end is a side: a NIC on a ShmLink with a QP and regions.
type end struct {
	gpu  *cuda.GPU
	nic  *softnic.NIC
	pd   verbs.PD
	cq   verbs.CQ
	qp   verbs.QP
	base *verbs.Memory // inDevice was adopted from it
	mem  [farRegions]*verbs.Memory
	mr   [farRegions]verbs.MR
	peer farCard
}

func newEnd(conn *net.UnixConn, g *cuda.GPU, size int) (e *end, err error) {
	link, err := softnic.NewShmLink(conn)
	if err != nil {
		return nil, err
	}
	e = &end{gpu: g}
	if e.nic, err = softnic.New(link, softnic.Config{}); err != nil {
		return nil, err
	}
	ctx, err := e.nic.Open()
	if err != nil {
		return nil, err
	}
	if e.pd, err = ctx.AllocPD(); err != nil {
		return nil, err
	}
	if e.cq, err = ctx.CreateCQ(verbs.CQConfig{Depth: 4096}); err != nil {
		return nil, err
	}
	cfg := verbs.QPConfig{Type: verbs.RC, SendCQ: e.cq, RecvCQ: e.cq, MaxSendWR: 2048, MaxRecvWR: 64, MaxSendSGE: 2, MaxRecvSGE: 1, MaxInline: 64}
	cfg.Path.AckTimeout = verbs.ExplicitZero // requests complete by response or teardown only, never by timeout
	if e.qp, err = e.pd.CreateQP(cfg); err != nil {
		return nil, err
	}
	if e.base, err = g.Alloc(size + 8192); err != nil {
		return nil, err
	}
	for i, alloc := range []func() (*verbs.Memory, error){
		inDevice: func() (*verbs.Memory, error) { return g.Adopt(e.base.Addr()+5008, size) },
		inSmall:  func() (*verbs.Memory, error) { return g.Alloc(3000) },
		inHost:   func() (*verbs.Memory, error) { return verbs.AllocMemory(size, &verbs.MemoryConfig{Shared: true}) },
	} {
		if e.mem[i], err = alloc(); err == nil {
			e.mr[i], err = e.pd.RegisterMemory(e.mem[i], verbs.AccessAll)
		}
		if err != nil {
			return nil, err
		}
	}
	return e, nil
}

// end releases everything, and ignores the error of a lost GPU.
func (e *end) end() error {
	err := e.nic.Close()
	for _, m := range append(e.mem[:], e.base) {
		err = errors.Join(err, m.Free())
	}
	if err = errors.Join(err, e.gpu.Close()); errors.Is(err, cuda.ErrDeviceLost) {
		return nil
	}
	return err
}

func (e *end) card() (farCard, error) {
	endpoint, err := e.qp.Endpoint()
	c := farCard{Endpoint: endpoint}
	for i, mr := range e.mr {
		c.Addr[i], c.RKey[i] = mr.Addr(), mr.RKey()
	}
	return c, err
}

// fill fills a region with bytes derived from seed, and returns them.
func (e *end) fill(region, seed int) ([]byte, error) {
	b := make([]byte, e.mem[region].Len())
	for i := range b {
		b[i] = byte(i*7 + i>>8 + seed)
	}
	_, err := e.mem[region].WriteAt(b, 0)
	return b, err
}

func (e *end) sum(region int) (s [sha256.Size]byte, err error) {
	b := make([]byte, e.mem[region].Len())
	if _, err = e.mem[region].ReadAt(b, 0); err == nil {
		s = sha256.Sum256(b)
	}
	return s, err
}

// wait polls for the next completion.
func (e *end) wait() (wc verbs.WC, err error) {
	var wcs [1]verbs.WC
	for {
		if n, err := e.cq.Poll(wcs[:]); n > 0 || err != nil {
			return wcs[0], err
		}
	}
}

// far is the main function of the other process.
func far() error {
	conn, err := net.FileConn(os.NewFile(3, "socket"))
	if err != nil {
		return err
	}
	g, err := openChild()
	if err != nil {
		return err
	}
	size, err := strconv.Atoi(os.Getenv(farSizeVariable))
	if err != nil {
		return err
	}
	e, err := newEnd(conn.(*net.UnixConn), g, size)
	if err != nil {
		return err
	}
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	card, err := e.card()
	if err := errors.Join(err, out.Encode(card), in.Decode(&e.peer), e.qp.Connect(e.peer.Endpoint)); err != nil {
		return err
	}
	if _, err := e.qp.PostRecv(make([]verbs.RecvWR, 16)); err != nil {
		return err
	}
	for err = out.Encode(answer{}); err == nil; {
		var o order
		if in.Decode(&o) != nil {
			break // the near side has exited
		}
		err = out.Encode(e.obey(o))
	}
	return errors.Join(err, e.end())
}

func (e *end) obey(o order) (a answer) {
	var err error
	switch o.Do {
	case "fill":
		_, err = e.fill(o.Region, o.Seed)
	case "sum":
		a.Sum, err = e.sum(o.Region)
	case "receive":
		var wc verbs.WC
		if wc, err = e.wait(); err == nil {
			a.Imm, err = wc.Imm, wc.Err()
			_, e := e.qp.PostRecv(make([]verbs.RecvWR, 1))
			err = errors.Join(err, e)
		}
	case "close":
		err = e.mr[o.Region].Close()
	case "handle":
		a.Handle, err = e.gpu.ExportMemory(e.mem[o.Region].Addr(), uint64(e.mem[o.Region].Len()))
	case "base": // inDevice was adopted from it
		err = e.base.Free()
	case "free":
		err = e.mem[o.Region].Free()
	case "hide": // other processes cannot copy directly to a re-registered region
		m := e.mem[o.Region]
		e.mr[o.Region], err = e.pd.(interface {
			ReregisterMemoryAt(old verbs.MR, m *verbs.Memory, iova uint64, access verbs.Access) (verbs.MR, error)
		}).ReregisterMemoryAt(e.mr[o.Region], m, m.Addr(), verbs.AccessAll)
	}
	if err != nil {
		a.Err = err.Error()
	}
	return a
}

// near is the local side of a test, with the other process.
type near struct {
	*end
	tb  testing.TB
	cmd *exec.Cmd
	in  io.WriteCloser
	out *json.Decoder
}

// startFar starts another process with the given environment, and connects to it. At the end of the
// test, both must have released everything.
func startFar(tb testing.TB, g *cuda.GPU, env []string) *near {
	tb.Helper()
	return startFarOf(tb, g, env, farSize)
}

// startFarOf is startFar with regions of another size.
func startFarOf(tb testing.TB, g *cuda.GPU, env []string, size int) *near {
	tb.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	ok(tb, err, "Socketpair")
	theirs, own := os.NewFile(uintptr(fds[0]), "socket"), os.NewFile(uintptr(fds[1]), "socket")
	conn, err := net.FileConn(own)
	ok(tb, errors.Join(err, own.Close()), "FileConn")
	n := &near{tb: tb, cmd: exec.Command(os.Args[0])}
	n.cmd.Env, n.cmd.Stderr, n.cmd.ExtraFiles = append(append(os.Environ(), env...), childVariable+"="+farTask, fmt.Sprintf("%s=%d", farSizeVariable, size)), os.Stderr, []*os.File{theirs}
	n.in, err = n.cmd.StdinPipe()
	ok(tb, err, "StdinPipe")
	out, err := n.cmd.StdoutPipe()
	ok(tb, err, "StdoutPipe")
	ok(tb, n.cmd.Start(), "Start")
	ok(tb, theirs.Close(), "Close")
	n.out = json.NewDecoder(out)
	n.end, err = newEnd(conn.(*net.UnixConn), g, size)
	ok(tb, err, "newEnd")
	tb.Cleanup(func() {
		_ = n.in.Close()
		if err := n.cmd.Wait(); err != nil && n.cmd.ProcessState.Exited() { // it was not killed
			tb.Errorf("the other process: %v", err)
		}
		ok(tb, n.end.end(), "the end of this side")
	})
	card, err := n.card()
	ok(tb, err, "card")
	ok(tb, json.NewEncoder(n.in).Encode(card), "Encode")
	ok(tb, n.out.Decode(&n.peer), "Decode")
	ok(tb, n.qp.Connect(n.peer.Endpoint), "Connect")
	n.answer()
	return n
}

// give sends an order to the other process. answer receives the response.
func (n *near) give(o order) {
	n.tb.Helper()
	ok(n.tb, json.NewEncoder(n.in).Encode(o), "Encode")
}

func (n *near) answer() answer {
	n.tb.Helper()
	var a answer
	ok(n.tb, n.out.Decode(&a), "Decode")
	if a.Err != "" {
		n.tb.Fatalf("the other process: %s", a.Err)
	}
	return a
}

func (n *near) ask(o order) answer {
	n.tb.Helper()
	n.give(o)
	return n.answer()
}

// request returns a signaled request for length bytes at offset 3 of a local region and offset 7 of
// a remote one.
func (n *near) request(op verbs.Opcode, own, theirs, length int) verbs.SendWR {
	wr := verbs.SendWR{Opcode: op, Flags: verbs.SendSignaled, RemoteAddr: n.peer.Addr[theirs] + 7, RKey: n.peer.RKey[theirs]}
	wr.SetSGE(verbs.SGE{Addr: n.mr[own].Addr() + 3, Length: uint32(length), LKey: n.mr[own].LKey()})
	return wr
}

// do posts requests and returns the status of the last one, which is signaled.
func (n *near) do(wrs ...verbs.SendWR) verbs.Status {
	n.tb.Helper()
	s, err := n.try(wrs...)
	ok(n.tb, err, "post and poll")
	return s
}

func (n *near) try(wrs ...verbs.SendWR) (verbs.Status, error) {
	if k, err := n.qp.PostSend(wrs); k != len(wrs) {
		return 0, fmt.Errorf("PostSend = %d, %w, want %d", k, err, len(wrs))
	}
	wc, err := n.wait()
	return wc.Status, err
}

// awaitShared waits until a region of the other process can be accessed without packets.
func (n *near) awaitShared(region int) {
	n.tb.Helper()
	for was := n.nic.Stats().Direct; n.nic.Stats().Direct == was; {
		if s := n.do(n.request(verbs.OpRDMARead, inHost, region, 8)); s != verbs.StatusSuccess {
			n.tb.Fatalf("a READ ends with %v, want success", s)
		}
	}
}

// direct returns the number of requests that this side has executed directly since was.
func (n *near) direct(was uint64) uint64 { return n.nic.Stats().Direct - was }
