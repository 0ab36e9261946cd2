package stream

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	"ibverbx/internal/enginetest/nodetest"
	"ibverbx/softnic"
)

// TestBothWays: data arrives in both directions, followed by EOF. All resources of the stream are released.
func TestBothWays(t *testing.T) {
	onLinks(t, func(t *testing.T, n *network) {
		p := newPair(t, n, Config{})
		here, there := p.dial(t)
		want := random(1, 1<<20)
		go func() {
			_, _ = io.Copy(there, there)
			_ = there.CloseWrite()
		}()
		go func() {
			_, _ = here.Write(want)
			_ = here.CloseWrite()
		}()
		got, err := io.ReadAll(here)
		wantOK(t, "ReadAll", err)
		if !bytes.Equal(got, want) {
			t.Errorf("%d bytes came back that differ from the %d that were sent", len(got), len(want))
		}
		wantOK(t, "Close", here.Close())
		wantOK(t, "Close", there.Close())
		p.wantNone(t)
	})
}

// wantNone waits until all streams are closed and each side has released all memory but one slab.
func (p *pair) wantNone(t *testing.T) {
	t.Helper()
	for _, s := range []*nodetest.Host{p.here, p.there} {
		eventually(t, "there are no streams", func() bool { return NodeStats(s.Node).Streams == 0 })
	}
}

// TestRingWrap writes and reads slices of all sizes around the ring size. Every byte is compared.
func TestRingWrap(t *testing.T) {
	p := newPair(t, memoryNetwork(2), Config{Ring: MinRing})
	data := random(2, 3*MinRing)
	rapid.Check(t, func(rt *rapid.T) {
		here, there := p.dial(t)
		sizes := rapid.SliceOfN(rapid.OneOf(rapid.IntRange(0, 64), rapid.IntRange(MinRing-64, MinRing+64), rapid.IntRange(0, 2*MinRing)), 1, 12)
		writes, reads := sizes.Draw(rt, "writes"), sizes.Draw(rt, "reads")
		var want []byte
		done := make(chan error, 1)
		for i, n := range writes {
			want = append(want, data[i:][:n]...)
		}
		go func() {
			for i, n := range writes {
				if _, err := here.Write(data[i:][:n]); err != nil {
					done <- err
					return
				}
			}
			done <- here.Close()
		}()
		var got []byte
		for i := 0; ; i++ {
			b := make([]byte, max(1, reads[i%len(reads)]))
			n, err := there.Read(b)
			if got = append(got, b[:n]...); errors.Is(err, io.EOF) {
				break
			}
			wantOK(t, "Read", err)
		}
		wantOK(t, "Write and Close", <-done)
		wantOK(t, "Close", there.Close())
		if !bytes.Equal(got, want) {
			rt.Fatalf("%d bytes came that differ from the %d that were written", len(got), len(want))
		}
	})
	p.wantNone(t)
}

// TestDifferentRings: the two sides have rings of other sizes.
func TestDifferentRings(t *testing.T) {
	for _, sizes := range [][2]int{{MinRing, 1 << 20}, {1 << 20, MinRing}} {
		p := newPair(t, memoryNetwork(1), Config{Ring: sizes[0]})
		p.cfg.Ring = sizes[1]
		here, there := p.dial(t)
		for _, c := range [][2]*Conn{{here, there}, {there, here}} {
			want := random(3, 3<<20)
			go func() { _, _ = c[0].Write(want) }()
			if got := readAll(t, c[1], len(want)); !bytes.Equal(got, want) {
				t.Errorf("rings of %v: bytes differ", sizes)
			}
		}
	}
}

// TestWriteWriteRead: the response to two short writes must not wait for a timer.
func TestWriteWriteRead(t *testing.T) {
	onLinks(t, func(t *testing.T, n *network) {
		here, there := newPair(t, n, Config{}).dial(t)
		go func() {
			b := make([]byte, 2)
			for {
				if _, err := io.ReadFull(there, b); err != nil {
					return
				}
				_, _ = there.Write(b[:1])
			}
		}()
		var times []time.Duration
		for range 100 {
			began := time.Now()
			for range 2 {
				_, err := here.Write([]byte{1})
				wantOK(t, "Write", err)
			}
			readAll(t, here, 1)
			times = append(times, time.Since(began))
		}
		slices.Sort(times)
		if times[50] > 20*time.Millisecond {
			t.Errorf("half of the answers took more than %v", times[50])
		}
		wantOK(t, "Close", here.Close())
	})
}

// TestOneByteWrites: short writes are coalesced while one is in flight.
func TestOneByteWrites(t *testing.T) {
	n := faultNetwork(t, 1, softnic.Impairment{})
	p := newPair(t, n, Config{})
	here, there := p.dial(t)
	release := p.hold()
	want := random(4, 1000)
	for i := range want {
		_, err := here.Write(want[i:][:1])
		wantOK(t, "Write", err)
	}
	release()
	if got := readAll(t, there, len(want)); !bytes.Equal(got, want) {
		t.Error("bytes differ")
	}
	if sent := p.peer.Stats().Counters.Notified; sent > 4 {
		t.Errorf("%d messages for %d writes, want few", sent, len(want))
	}
}

// TestLongWriteGrows: the more messages of a long Write are in flight, the longer new ones get. The last
// bytes are sent without waiting.
func TestLongWriteGrows(t *testing.T) {
	n := faultNetwork(t, 1, softnic.Impairment{})
	p := newPair(t, n, Config{Ring: 1 << 20})
	here, there := p.dial(t)
	release := p.hold()
	want := random(5, 1<<20)
	_, err := here.Write(want)
	wantOK(t, "Write", err)
	here.mu.Lock()
	posted := here.out.posted
	here.mu.Unlock()
	if posted != uint64(len(want)) {
		t.Errorf("%d bytes were sent before the first has arrived, want all %d", posted, len(want))
	}
	release()
	if got := readAll(t, there, len(want)); !bytes.Equal(got, want) {
		t.Error("bytes differ")
	}
	if sent := p.peer.Stats().Counters.Notified; sent > 7 {
		t.Errorf("%d messages for %d bytes, want at most 7", sent, len(want))
	}
}

// hold delays all packets between the two sides until release.
func (p *pair) hold() (release func()) {
	each := func(f func(l *softnic.FaultLink, from, to *softnic.NIC)) {
		for rail, link := range p.here.Links {
			l := link.(*softnic.FaultLink)
			f(l, p.here.NICs[rail], p.there.NICs[rail])
			f(l, p.there.NICs[rail], p.here.NICs[rail])
		}
	}
	each((*softnic.FaultLink).Hold)
	return sync.OnceFunc(func() { each((*softnic.FaultLink).Release) })
}

// fill writes until both rings are full, and returns the number of bytes written.
func fill(t testing.TB, c *Conn) (sum int) {
	t.Helper()
	c.mu.Lock()
	full := len(c.out.ring) + int(c.ring.Length)
	c.mu.Unlock()
	for b := make([]byte, 100_000); sum < full; {
		wantOK(t, "SetWriteDeadline", c.SetWriteDeadline(time.Now().Add(20*time.Millisecond)))
		n, err := c.Write(b)
		if sum += n; err != nil {
			wantErr(t, "Write", err, os.ErrDeadlineExceeded)
		}
	}
	wantOK(t, "SetWriteDeadline", c.SetWriteDeadline(time.Time{}))
	return sum
}

// TestDeadlineDuringCredit: a Write that waits for the peer to read times out and returns the number of
// accepted bytes. Exactly those arrive.
func TestDeadlineDuringCredit(t *testing.T) {
	onLinks(t, func(t *testing.T, n *network) {
		here, there := newPair(t, n, Config{Ring: MinRing}).dial(t)
		want := random(5, 10*MinRing)
		var n1 int
		var err error
		for wait := 30 * time.Millisecond; n1 == 0 && wait < time.Minute; wait *= 2 { // a busy machine may accept the first bytes late
			wantOK(t, "SetWriteDeadline", here.SetWriteDeadline(time.Now().Add(wait)))
			n1, err = here.Write(want)
			wantErr(t, "Write", err, os.ErrDeadlineExceeded)
		}
		var e net.Error
		if !errors.As(err, &e) || !e.Timeout() || n1 == 0 || n1 > 2*MinRing {
			t.Fatalf("Write: got %d and %v, want a timeout after some bytes", n1, err)
		}
		wantOK(t, "SetWriteDeadline", here.SetWriteDeadline(time.Time{}))
		go func() {
			_, _ = here.Write(want[n1:])
			_ = here.CloseWrite()
		}()
		got, err := io.ReadAll(there)
		wantOK(t, "ReadAll", err)
		if !bytes.Equal(got, want) {
			t.Errorf("%d bytes came that differ from the %d that were written", len(got), len(want))
		}
	})
}

// TestHalfClose: each direction closes separately.
func TestHalfClose(t *testing.T) {
	p := newPair(t, memoryNetwork(1), Config{})
	here, there := p.dial(t)
	_, err := here.Write([]byte("question"))
	wantOK(t, "Write", err)
	wantOK(t, "CloseWrite", here.CloseWrite())
	_, err = here.Write([]byte("more"))
	wantErr(t, "Write after CloseWrite", err, syscall.EPIPE)
	b, err := io.ReadAll(there)
	if err != nil || string(b) != "question" {
		t.Fatalf("ReadAll: got %q and %v, want the question", b, err)
	}
	_, err = there.Write([]byte("answer"))
	wantOK(t, "Write", err)
	if got := string(readAll(t, here, 6)); got != "answer" {
		t.Errorf("got %q, want the answer", got)
	}
	wantOK(t, "CloseRead", here.CloseRead())
	if n, err := here.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("Read after CloseRead: got %d and %v, want EOF", n, err)
	}
	eventually(t, "the peer cannot write", func() bool {
		_, err := there.Write([]byte("nobody reads this"))
		return errors.Is(err, syscall.EPIPE)
	})
	wantOK(t, "Close", here.Close())
	wantOK(t, "Close", there.Close())
	for what, f := range map[string]func() error{
		"Close": here.Close, "CloseRead": here.CloseRead, "CloseWrite": here.CloseWrite,
		"SetDeadline": func() error { return here.SetDeadline(time.Time{}) },
		"Read":        func() error { _, err := here.Read(nil); return err },
		"Write":       func() error { _, err := here.Write(nil); return err },
	} {
		wantErr(t, what+" after Close", f(), net.ErrClosed)
	}
	p.wantNone(t)
}

// TestCloseUnderFullRing: closing a stream whose peer does not read takes bounded time. The peer gets the
// delivered data, then an error.
func TestCloseUnderFullRing(t *testing.T) {
	p := newPair(t, memoryNetwork(1), Config{Ring: MinRing})
	p.setLinger(t, 50*time.Millisecond)
	here, there := p.dial(t)
	sum := fill(t, here)
	closeWithin(t, 5*time.Second, here)
	n, err := io.Copy(io.Discard, struct{ io.Reader }{there})
	wantErr(t, "Read", err, syscall.ECONNRESET)
	if n == 0 || n >= int64(sum) {
		t.Errorf("got %d bytes, want less than %d", n, sum)
	}
	wantOK(t, "Close", there.Close())
	p.wantNone(t)
	if lingerTime > 5*time.Second {
		t.Errorf("Close may take %v", lingerTime)
	}
}

// setLinger sets the timeout of Close.
func (p *pair) setLinger(t testing.TB, d time.Duration) {
	t.Helper()
	for _, s := range []*nodetest.Host{p.here, p.there} {
		h, err := serviceOf(s.Node)
		wantOK(t, "hostOf", err)
		h.linger, h.reap = d, d
	}
}

// TestCloseWithDeadPeer: Close returns within its timeout even if the peer is unreachable.
func TestCloseWithDeadPeer(t *testing.T) {
	p := newPair(t, faultNetwork(t, 2, softnic.Impairment{}), Config{})
	p.setLinger(t, 50*time.Millisecond)
	here, there := p.dial(t)
	release := p.hold()
	_, err := here.Write(random(6, 100_000))
	wantOK(t, "Write", err)
	closeWithin(t, 5*time.Second, here)
	closeWithin(t, 5*time.Second, there)
	release()
	p.wantNone(t)
}

// TestCloseWaitsForBytes: data written before Close arrives, even if the Node is closed next.
func TestCloseWaitsForBytes(t *testing.T) {
	onLinks(t, func(t *testing.T, n *network) {
		p := newPair(t, n, Config{})
		here, there := p.dial(t)
		want := random(7, 200_000)
		_, err := here.Write(want)
		wantOK(t, "Write", err)
		wantOK(t, "Close", here.Close())
		wantOK(t, "Node.Close", p.here.Close())
		got, err := io.ReadAll(there)
		wantOK(t, "ReadAll", err)
		if !bytes.Equal(got, want) {
			t.Errorf("%d bytes came that differ from the %d that were written", len(got), len(want))
		}
	})
}

// TestUnreadIsReset: Close with unread data resets the stream at the peer, as with TCP.
func TestUnreadIsReset(t *testing.T) {
	p := newPair(t, memoryNetwork(1), Config{Ring: MinRing})
	here, there := p.dial(t)
	fill(t, here)
	fill(t, there)
	closeWithin(t, 3*time.Second, here)
	_, err := io.Copy(io.Discard, struct{ io.Reader }{there})
	wantErr(t, "Read", err, syscall.ECONNRESET)
	_, err = there.Write([]byte{1})
	wantErr(t, "Write", err, syscall.EPIPE)
	wantOK(t, "Close", there.Close())
	p.wantNone(t)
}

// TestReaderStops: an unread stream does not block others.
func TestReaderStops(t *testing.T) {
	onLinks(t, func(t *testing.T, n *network) {
		p := newPair(t, n, Config{Ring: MinRing})
		for range 8 {
			here, _ := p.dial(t)
			fill(t, here)
		}
		here, there := p.dial(t)
		want := random(8, 4<<20)
		go func() { _, _ = here.Write(want) }()
		if got := readAll(t, there, len(want)); !bytes.Equal(got, want) {
			t.Error("bytes differ")
		}
	})
}

// TestReadFromWriteTo: io.Copy uses the rings without a buffer.
func TestReadFromWriteTo(t *testing.T) {
	here, there := newPair(t, memoryNetwork(2), Config{}).dial(t)
	want := random(9, 1<<20)
	go func() {
		_, _ = here.ReadFrom(struct{ io.Reader }{bytes.NewReader(want)})
		_ = here.CloseWrite()
	}()
	var got bytes.Buffer
	n, err := there.WriteTo(struct{ io.Writer }{&got})
	if err != nil || n != int64(len(want)) || !bytes.Equal(got.Bytes(), want) {
		t.Errorf("WriteTo: got %d bytes and %v, want %d equal ones", n, err, len(want))
	}
	failure := errors.New("planted")
	_, err = there.ReadFrom(io.MultiReader(bytes.NewReader(want[:10]), failing{failure}))
	wantErr(t, "ReadFrom a reader that fails", err, failure)
	_, err = here.WriteTo(failing{failure})
	wantErr(t, "WriteTo a writer that fails", err, failure)
}

// failing is a reader and a writer that fails.
type failing struct{ err error }

func (f failing) Read([]byte) (int, error)  { return 0, f.err }
func (f failing) Write([]byte) (int, error) { return 0, f.err }

// TestCloseDuringReadFrom: Close does not wait for the reader that ReadFrom reads.
func TestCloseDuringReadFrom(t *testing.T) {
	here, there := newPair(t, memoryNetwork(1), Config{}).dial(t)
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() {
		_, err := here.ReadFrom(r)
		_ = r.Close() // the Write after Close may fail because the reader has closed
		done <- err
	}()
	_, err := w.Write([]byte("x"))
	wantOK(t, "Write", err)
	readAll(t, there, 1)
	closeWithin(t, 3*time.Second, here)
	_, _ = w.Write([]byte("y"))
	wantErr(t, "ReadFrom", <-done, net.ErrClosed)
	_, err = io.ReadAll(there)
	wantOK(t, "ReadAll", err)
}

// TestInfo: a stream describes itself.
func TestInfo(t *testing.T) {
	p := newPair(t, memoryNetwork(2), Config{Ring: MinRing})
	here, there := p.dial(t)
	_, err := here.Write(make([]byte, 1000))
	wantOK(t, "Write", err)
	readAll(t, there, 400)
	eventually(t, "the bytes have arrived", func() bool { return here.Info().Unsent == 0 })
	i, j := here.Info(), there.Info()
	if i.Peer != p.peer || i.Service != "test" || !i.Dialed || i.Rails != 2 || i.Sealed || i.RTT <= 0 || i.Sent != 1000 || i.Credit != MinRing-1000 {
		t.Errorf("Info of the dialer: got %+v", i)
	}
	if j.Dialed || j.Received != 1000 || j.Unread != 600 || j.Identity.Addr == nil {
		t.Errorf("Info of the other side: got %+v", j)
	}
	s := NodeStats(p.here.Node)
	if s.Streams != 1 || s.Dialed != 1 || s.Sent != 1000 || s.Memory != 2*MinRing {
		t.Errorf("NodeStats: got %+v", s)
	}
	if got, want := here.RemoteAddr().String(), p.there.Addr().String()+"/test"; got != want {
		t.Errorf("RemoteAddr: got %q, want %q", got, want)
	}
	if got, want := fmt.Sprintf("%v %s", there.LocalAddr(), p.l.Addr().Network()), p.there.Addr().String()+"/test ibverbx"; got != want {
		t.Errorf("LocalAddr: got %q, want %q", got, want)
	}
}
