package udp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

var (
	loopback4 = netip.MustParseAddr("127.0.0.1")
	loopback6 = netip.MustParseAddr("::1")
)

// testPort is the first port that tests try: the usual ones may be in use.
const testPort = 20000

func open(tb testing.TB, cfg Config) *Conn {
	tb.Helper()
	if !cfg.Addr.IsValid() {
		cfg.Addr = loopback4
	}
	if cfg.Port == 0 {
		cfg.Port = testPort
	}
	c, err := Open(cfg)
	if err != nil {
		tb.Fatalf("Open(%+v): %v", cfg, err)
	}
	tb.Cleanup(func() {
		if err := c.Close(); err != nil {
			tb.Errorf("Close = %v, want nil", err)
		}
	})
	return c
}

// put sends b as one datagram.
func put(w *Writer, to *Dest, socket int, b []byte) int {
	d, k := w.Next(to, socket, len(b))
	copy(d, b)
	return k
}

// got reads until n datagrams have arrived and returns them, with runs split.
func got(tb testing.TB, c *Conn, r *Reader, n int) (datagrams [][]byte, entries int) {
	tb.Helper()
	enough := time.AfterFunc(2*time.Minute, func() { _ = c.Interrupt() }) // avoids blocking forever
	defer enough.Stop()
	for len(datagrams) < n {
		k, err := r.Read()
		if err != nil {
			tb.Fatalf("Read: %v", err)
		}
		if k == 0 {
			if err := c.Wait(); err != nil {
				tb.Fatalf("Wait after %d datagrams of %d: %v", len(datagrams), n, err)
			}
		}
		entries += k
		for i := range k {
			d := r.Datagram(i)
			for b := d.Data; len(b) > 0; {
				size := min(d.Segment, len(b))
				datagrams = append(datagrams, bytes.Clone(b[:size]))
				b = b[size:]
			}
		}
	}
	return datagrams, entries
}

// holds returns the number of datagrams of a size that fit in the receive buffer of a Conn, even of
// an unprivileged process. The kernel counts overhead too.
func holds(c *Conn, size int) int { return c.Buffer() / 2 / (size + 1024) }

// pattern returns n bytes that depend on their offset and on seed.
func pattern(n, seed int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + seed*31 + i>>8)
	}
	return b
}

// variants runs f with every configuration of a Conn.
func variants(t *testing.T, f func(t *testing.T, cfg Config)) {
	for _, v := range []struct {
		name string
		cfg  Config
	}{
		{"ipv4", Config{Addr: loopback4}},
		{"ipv6", Config{Addr: loopback6}},
		{"ipv4/no segment", Config{Addr: loopback4, NoSegment: true}},
		{"ipv4/no coalesce", Config{Addr: loopback4, NoCoalesce: true}},
		{"ipv6/neither", Config{Addr: loopback6, NoSegment: true, NoCoalesce: true}},
	} {
		t.Run(v.name, func(t *testing.T) { f(t, v.cfg) })
	}
}

// Datagrams arrive intact and in order, whatever their runs.
func TestRoundTrip(t *testing.T) {
	variants(t, func(t *testing.T, cfg Config) {
		c := open(t, cfg)
		w, r := c.NewWriter(), c.NewReader()
		rapid.Check(t, func(rt *rapid.T) {
			to := NewDest(c.Addr(), rapid.Bool().Draw(rt, "runs"))
			var sent [][]byte
			for range rapid.IntRange(1, 5).Draw(rt, "groups") {
				size := rapid.IntRange(1, 6000).Draw(rt, "size")
				for range min(rapid.IntRange(1, 20).Draw(rt, "count"), 1+holds(c, size)/5) {
					b := pattern(size, len(sent))
					k := put(w, to, 3, b)
					if k >= max(c.Segments(), 1) || (k > 0 && !to.runs) {
						rt.Fatalf("datagram %d of a run of at most %d, runs allowed %v", k, c.Segments(), to.runs)
					}
					sent = append(sent, b)
				}
			}
			if dropped := w.Flush(); dropped != 0 {
				rt.Fatalf("Flush = %d dropped, want 0", dropped)
			}
			arrived, _ := got(t, c, r, len(sent))
			for i := range sent {
				if !bytes.Equal(arrived[i], sent[i]) {
					rt.Fatalf("datagram %d of %d bytes arrived as %d others", i, len(sent[i]), len(arrived[i]))
				}
			}
		})
	})
}

// Only equally long datagrams to one destination are sent and received as a run.
func TestRuns(t *testing.T) {
	c := open(t, Config{})
	if c.Segments() == 1 || !c.Coalesces() {
		t.Skip("the kernel has no UDP_SEGMENT or no UDP_GRO")
	}
	w, r := c.NewWriter(), c.NewReader()
	to, other := NewDest(c.Addr(), true), NewDest(c.Addr(), true)
	steps := []struct {
		to     *Dest
		socket int
		size   int
		want   int
	}{
		{to, 0, 1000, 0},
		{to, 0, 1000, 1},
		{to, 0, 1000, 2},
		{to, 1, 1000, 0},    // another socket
		{to, 0, 1000, 3},    // the first socket again
		{other, 1, 1000, 0}, // another destination
		{other, 1, 900, 1},  // shorter: the last of its run
		{other, 1, 900, 0},
		{other, 1, 901, 0}, // longer
	}
	for i, s := range steps {
		if k := put(w, s.to, s.socket, pattern(s.size, i)); k != s.want {
			t.Errorf("datagram %d is number %d of its run, want %d", i, k, s.want)
		}
	}
	w.Flush()
	arrived, entries := got(t, c, r, len(steps))
	if entries != 5 {
		t.Errorf("%d entries, want the 5 runs", entries)
	}
	for i, k := range []int{0, 1, 2, 4, 3, 5, 6, 7, 8} { // socket by socket
		if !bytes.Equal(arrived[i], pattern(steps[k].size, k)) {
			t.Errorf("datagram %d has other bytes than number %d that was sent", i, k)
		}
	}
}

// A run has at most as many datagrams, and bytes, as the kernel accepts.
func TestRunLimits(t *testing.T) {
	for _, size := range []int{1, 40, 4112, 32000} {
		c := open(t, Config{})
		w, r := c.NewWriter(), c.NewReader()
		to := NewDest(c.Addr(), true)
		n := min(3*maxSegments/2, holds(c, size))
		for i := range n {
			if k := put(w, to, 0, pattern(size, i)); (k+1)*size > MaxDatagram || k >= maxSegments {
				t.Fatalf("datagram %d of %d bytes in a run", k, size)
			}
		}
		if dropped := w.Flush(); dropped != 0 {
			t.Fatalf("size %d: %d dropped, want 0", size, dropped)
		}
		got(t, c, r, n)
	}
}

// Every socket of the pool has its own source port, which the receiver sees.
func TestSourcePorts(t *testing.T) {
	for _, addr := range []netip.Addr{loopback4, loopback6} {
		c := open(t, Config{Addr: addr, Sockets: 4})
		if c.Sockets() != 4 || c.SourcePort(4) != c.Addr().Port() {
			t.Fatalf("Sockets = %d, and then port %d, want 4 and %d", c.Sockets(), c.SourcePort(4), c.Addr().Port())
		}
		w, r := c.NewWriter(), c.NewReader()
		to := NewDest(c.Addr(), true)
		seen := map[uint16]bool{}
		for s := range 4 {
			put(w, to, s, pattern(10, s))
			w.Flush()
			got(t, c, r, 1)
			d := r.Datagram(0)
			if d.Port != c.SourcePort(s) || d.Port < FirstSourcePort || d.From != addr.As16() {
				t.Errorf("socket %d: from %v port %d, want %v port %d", s, d.From, d.Port, addr, c.SourcePort(s))
			}
			seen[d.Port] = true
		}
		if len(seen) != 4 {
			t.Errorf("%d source ports, want 4", len(seen))
		}
	}
}

// Two Conns on one address use different ports.
func TestPortTaken(t *testing.T) {
	a, b := open(t, Config{}), open(t, Config{})
	if a.Addr().Port() == b.Addr().Port() || b.Addr().Port() < testPort {
		t.Errorf("ports %d and %d, want two from %d on", a.Addr().Port(), b.Addr().Port(), testPort)
	}
}

// Interrupt makes current and later calls of Wait return.
func TestInterrupt(t *testing.T) {
	c := open(t, Config{})
	done := make(chan error)
	go func() { done <- c.Wait() }()
	if err := c.Interrupt(); err != nil {
		t.Fatalf("Interrupt = %v, want nil", err)
	}
	if err := <-done; !errors.Is(err, os.ErrClosed) {
		t.Errorf("Wait that was interrupted = %v, want os.ErrClosed", err)
	}
	if err := c.Wait(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Wait after Interrupt = %v, want os.ErrClosed", err)
	}
}

// A datagram larger than the path MTU is dropped and counted, and the next one is sent.
func TestDropped(t *testing.T) {
	c := open(t, Config{})
	w, r := c.NewWriter(), c.NewReader()
	to := NewDest(c.Addr(), false)
	put(w, to, 0, pattern(65536, 0))
	put(w, to, 0, pattern(100, 1))
	if dropped := w.Flush(); dropped != 1 {
		t.Errorf("Flush = %d dropped, want 1", dropped)
	}
	if arrived, _ := got(t, c, r, 1); !bytes.Equal(arrived[0], pattern(100, 1)) {
		t.Error("the datagram after a dropped one has not arrived")
	}
}

// Sending and receiving do not allocate per datagram.
func TestNoAllocations(t *testing.T) {
	c := open(t, Config{})
	w, r := c.NewWriter(), c.NewReader()
	to, b := NewDest(c.Addr(), true), pattern(100, 0)
	allocs := testing.AllocsPerRun(100, func() {
		for range 10 {
			put(w, to, 0, b)
		}
		w.Flush()
		for n := 0; n == 0; {
			n, _ = r.Read()
			if n == 0 {
				_ = c.Wait()
			}
		}
	})
	if allocs != 0 {
		t.Errorf("%v allocations for ten datagrams, want 0", allocs)
	}
}

// TestChecksummed: datagrams have UDP checksums, which protect what the ICRC of the headers leaves out.
func TestChecksummed(t *testing.T) {
	for _, addr := range []string{"127.0.0.1", "::1"} {
		c := open(t, Config{Addr: netip.MustParseAddr(addr), Sockets: 2})
		for _, fd := range c.send {
			off, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_NO_CHECK)
			off6, err6 := unix.GetsockoptInt(fd, unix.SOL_UDP, unix.UDP_NO_CHECK6_TX)
			if off != 0 || off6 != 0 || err != nil || err6 != nil {
				t.Errorf("%s: SO_NO_CHECK = %d, %v, UDP_NO_CHECK6_TX = %d, %v, want both 0", addr, off, err, off6, err6)
			}
		}
	}
}

// The IPv4 header has identification 0 and forbids fragmentation: the RoCE ICRC covers both.
func TestIdentification(t *testing.T) {
	raw, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_UDP)
	if errors.Is(err, os.ErrPermission) {
		t.Skip("raw sockets need CAP_NET_RAW")
	}
	if err != nil {
		t.Fatalf("raw socket: %v", err)
	}
	defer func() { _ = unix.Close(raw) }()
	timeout := unix.Timeval{Sec: 1}
	if err := unix.SetsockoptTimeval(raw, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
		t.Fatalf("SO_RCVTIMEO: %v", err)
	}
	// The socket uses a dedicated address; with other traffic it would lose datagrams on a busy
	// machine.
	own := netip.MustParseAddr("127.19.83.1")
	if err := unix.Bind(raw, &unix.SockaddrInet4{Addr: own.As4()}); err != nil {
		t.Fatalf("bind a raw socket: %v", err)
	}
	c := open(t, Config{Addr: own})
	w := c.NewWriter()
	for i := range 3 {
		b := make([]byte, 1<<16)
		send := func() {
			put(w, NewDest(c.Addr(), true), i, pattern(20, i))
			w.Flush()
		}
		send()
		for tries := 0; ; {
			n, _, err := unix.Recvfrom(raw, b, 0)
			switch {
			case errors.Is(err, unix.EINTR):
			case errors.Is(err, unix.EAGAIN) && tries < 60:
				tries++ // the datagram may have been lost
				send()
			case err != nil:
				t.Fatalf("receive on a raw socket: %v", err)
			}
			if err == nil && n >= 28 && binary.BigEndian.Uint16(b[22:]) == c.Addr().Port() {
				break
			}
		}
		if id, flags := binary.BigEndian.Uint16(b[4:]), binary.BigEndian.Uint16(b[6:]); id != 0 || flags != 0x4000 {
			t.Errorf("identification %d, flags %#04x, want 0 and 0x4000", id, flags)
		}
	}
}

func TestInterfaceMTU(t *testing.T) {
	for _, a := range []string{"127.0.0.1", "127.3.2.1", "::1"} {
		if mtu, name, err := InterfaceMTU(netip.MustParseAddr(a)); err != nil || mtu < 1280 || name == "" {
			t.Errorf("InterfaceMTU(%s) = %d, %q, %v, want that of the loopback", a, mtu, name, err)
		}
	}
	if _, _, err := InterfaceMTU(netip.MustParseAddr("192.0.2.1")); err == nil {
		t.Error("InterfaceMTU of a foreign address = nil, want an error")
	}
}

// An invalid configuration is rejected.
func TestConfig(t *testing.T) {
	for name, cfg := range map[string]Config{
		"no address":       {Port: testPort},
		"foreign address":  {Addr: netip.MustParseAddr("192.0.2.1"), Port: testPort},
		"unspecified":      {Addr: netip.IPv4Unspecified(), Port: testPort},
		"no port":          {Addr: loopback4},
		"port of senders":  {Addr: loopback4, Port: 0xc000},
		"negative sockets": {Addr: loopback4, Port: testPort, Sockets: -1},
		"negative buffer":  {Addr: loopback4, Port: testPort, Buffer: -1},
	} {
		if c, err := Open(cfg); err == nil {
			_ = c.Close()
			t.Errorf("%s: Open = nil, want an error", name)
		}
	}
}

// Over IPv6, datagrams without a checksum are received too: the kernel's Soft-RoCE omits it.
func TestNoChecksum(t *testing.T) {
	c := open(t, Config{Addr: loopback6, Sockets: 1})
	w, r := c.NewWriter(), c.NewReader()
	to := NewDest(c.Addr(), false)
	for i, off := range []int{1, 0} {
		if err := unix.SetsockoptInt(c.send[0], unix.SOL_UDP, unix.UDP_NO_CHECK6_TX, off); err != nil {
			t.Fatalf("setsockopt UDP_NO_CHECK6_TX = %v, want nil", err)
		}
		put(w, to, 0, pattern(10, i))
		if dropped := w.Flush(); dropped != 0 {
			t.Fatalf("%d datagrams dropped, want 0", dropped)
		}
	}
	if first, _ := got(t, c, r, 1); !bytes.Equal(first[0], pattern(10, 0)) {
		t.Fatalf("the first datagram is %x, want %x, the one without a checksum", first[0], pattern(10, 0))
	}
}
