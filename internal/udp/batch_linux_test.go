package udp

import (
	"bytes"
	"testing"
	"time"
	"unsafe"
)

// TestBatchOfLongRuns: long datagrams are sent in cache-sized batches before Flush; short ones wait
// for it.
func TestBatchOfLongRuns(t *testing.T) {
	c := open(t, Config{})
	if c.Segments() == 1 {
		t.Skip("the kernel has no UDP_SEGMENT")
	}
	w, r := c.NewWriter(), c.NewReader()
	to := NewDest(c.Addr(), true)
	long := pattern(4000, 1)
	perRun := MaxDatagram / len(long)
	n := 3*perRun + 1 // two runs fill a batch; the fourth starts after it was sent
	if holds(c, len(long)) < n {
		t.Skipf("the socket buffer of %d bytes holds fewer than %d datagrams", c.Buffer(), n)
	}
	for range n {
		put(w, to, 0, long)
	}
	early, _ := got(t, c, r, 2*perRun)
	if len(early) != 2*perRun {
		t.Errorf("%d datagrams came before the flush, want %d: two runs", len(early), 2*perRun)
	}
	if dropped := w.Flush(); dropped != 0 {
		t.Fatalf("%d datagrams dropped, want 0", dropped)
	}
	late, _ := got(t, c, r, n-len(early))
	for i, b := range append(early, late...) {
		if !bytes.Equal(b, long) {
			t.Fatalf("datagram %d of %d is not what was sent", i, n)
		}
	}
	for range 100 {
		put(w, to, 0, long[:20])
	}
	if k, err := r.Read(); k != 0 || err != nil {
		t.Errorf("Read before the flush = %d, %v, want 0, nil: short datagrams wait", k, err)
	}
	if dropped := w.Flush(); dropped != 0 {
		t.Fatalf("%d datagrams dropped, want 0", dropped)
	}
	got(t, c, r, 100)
}

// TestReadTarget: after long datagrams a Read takes only as many as fit in the cache, after short
// ones as many as it has slots.
func TestReadTarget(t *testing.T) {
	c := open(t, Config{})
	w, r := c.NewWriter(), c.NewReader()
	to := NewDest(c.Addr(), false)
	enough := time.AfterFunc(2*time.Minute, func() { _ = c.Interrupt() }) // avoids blocking forever
	defer enough.Stop()
	// pass sends datagrams and receives all of them, possibly in several Reads. It returns the
	// largest Read.
	pass := func(size int) (most int) {
		t.Helper()
		left := min(len(r.msgs), holds(c, size))
		for range left {
			put(w, to, 0, pattern(size, 1))
		}
		if dropped := w.Flush(); dropped != 0 {
			t.Fatalf("%d datagrams of %d bytes dropped, want 0", dropped, size)
		}
		for left > 0 {
			k, err := r.Read()
			if err == nil && k == 0 {
				err = c.Wait()
			}
			if err != nil {
				t.Fatalf("%d datagrams of %d bytes have not come: %v", left, size, err)
			}
			left -= k
			most = max(most, k)
		}
		return most
	}
	size := min(60000, len(r.bytes)/len(r.msgs))
	if c.Buffer() < 4*readTarget {
		t.Skipf("the socket buffer is %d bytes, too small for the test", c.Buffer())
	}
	pass(size)
	if most := readTarget / size; r.next != most {
		t.Errorf("after datagrams of %d bytes a Read takes %d, want %d", size, r.next, most)
	}
	if most := pass(size); most > readTarget/size {
		t.Errorf("Read = %d datagrams of %d bytes, want %d at the most", most, size, readTarget/size)
	}
	pass(20)
	if r.next != len(r.msgs) {
		t.Errorf("after datagrams of 20 bytes a Read takes %d, want %d", r.next, len(r.msgs))
	}
}

// TestDrained: a full Read may have left datagrams behind; a partial one has not.
func TestDrained(t *testing.T) {
	c := open(t, Config{NoCoalesce: true})
	w, r := c.NewWriter(), c.NewReader()
	to := NewDest(c.Addr(), false)
	if n := len(r.msgs) + 1; holds(c, 20) < n {
		t.Skipf("the socket buffer of %d bytes holds fewer than %d datagrams", c.Buffer(), n)
	}
	for range len(r.msgs) + 1 {
		put(w, to, 0, pattern(20, 1))
	}
	if dropped := w.Flush(); dropped != 0 {
		t.Fatalf("%d datagrams dropped, want 0", dropped)
	}
	for left := len(r.msgs) + 1; left > 0; { // they may arrive in several Reads
		most := r.next
		n, err := r.Read()
		if err != nil {
			t.Fatalf("Read = %d, %v, want no error", n, err)
		}
		if n > 0 && r.Drained() != (n < most) {
			t.Errorf("Read = %d of %d at the most, Drained = %t, want %t", n, most, r.Drained(), n < most)
		}
		left -= n
	}
}

// TestPayloadAlignment: the payload after a header of 12 or 28 bytes is aligned for a fast copy.
func TestPayloadAlignment(t *testing.T) {
	c := open(t, Config{})
	r, w := c.NewReader(), c.NewWriter()
	for _, header := range []uintptr{12, 28} {
		d, _ := w.Next(NewDest(c.Addr(), false), 0, int(header)+4096+4)
		if at := uintptr(unsafe.Pointer(&d[0])) + header; at%8 != 0 {
			t.Fatalf("the payload behind %d bytes is written to %#x, want a multiple of 8", header, at)
		}
	}
	for i := range r.iovs {
		for _, header := range []uintptr{12, 28} {
			if at := uintptr(unsafe.Pointer(r.iovs[i].Base)) + header; at%8 != 0 {
				t.Fatalf("slot %d: the payload behind %d bytes is at %#x, want a multiple of 8", i, header, at)
			}
		}
	}
}

// TestFill: datagrams shorter than their run are padded with zeros and join it. Longer or much
// shorter datagrams and other destinations start or complete a run as before.
func TestFill(t *testing.T) {
	c := open(t, Config{Addr: loopback4})
	if c.Segments() == 1 || !c.Coalesces() {
		t.Skip("the kernel has no UDP_SEGMENT or no UDP_GRO")
	}
	w, r := c.NewWriter(), c.NewReader()
	filled, plain := NewDest(c.Addr(), true).Fill(), NewDest(c.Addr(), true)
	steps := []struct {
		to         *Dest
		size, most int
		k, fill    int
	}{
		{filled, 4128, 4144, 0, 16}, // starts a run of 4144
		{filled, 4112, 4144, 1, 32},
		{filled, 4144, 4144, 2, 0},
		{filled, 4144 - maxFill, 4144, 3, maxFill},
		{filled, 20, 20, 4, 0}, // too short: completes the run
		{filled, 20, 20, 0, 0},
		{filled, 24, 24, 0, 0}, // larger than the run
		{filled, 20, 20, 1, 4},
		{plain, 4112, 4144, 0, 0},
		{plain, 4108, 4108, 1, 0},
	}
	var want [][]byte
	for i, s := range steps {
		d, k, fill := w.NextIn(s.to, 0, s.size, s.most)
		if len(d) != s.size || k != s.k || fill != s.fill {
			t.Fatalf("step %d: %d bytes, number %d, fill %d; want %d, %d, %d", i, len(d), k, fill, s.size, s.k, s.fill)
		}
		copy(d, pattern(s.size, i))
		want = append(want, append(pattern(s.size, i), make([]byte, fill)...))
	}
	if dropped := w.Flush(); dropped != 0 {
		t.Fatalf("%d datagrams dropped, want 0", dropped)
	}
	datagrams, entries := got(t, c, r, len(want))
	for i := range want {
		if !bytes.Equal(datagrams[i], want[i]) {
			t.Errorf("datagram %d has %d bytes, want %d, equal", i, len(datagrams[i]), len(want[i]))
		}
	}
	if entries != 4 {
		t.Errorf("they arrived as %d, want 4 runs", entries)
	}
}

// TestNoFillWithoutRuns: a datagram outside a run is not padded.
func TestNoFillWithoutRuns(t *testing.T) {
	c := open(t, Config{Addr: loopback4, NoSegment: true})
	if d, k, fill := c.NewWriter().NextIn(NewDest(c.Addr(), true).Fill(), 0, 20, 48); len(d) != 20 || k != 0 || fill != 0 {
		t.Errorf("%d bytes, number %d, fill %d; want 20, 0, 0", len(d), k, fill)
	}
}

// TestSegmentsOf: a run has as many datagrams as the kernel accepts, and few on an unknown kernel.
func TestSegmentsOf(t *testing.T) {
	for release, want := range map[string]int32{"6.18.5-generic": 128, "6.9.0": 128, "6.8.12": 64, "5.15.0-1": 64, "7.0": 128, "10.1": 128, "": 64, "x": 64, "6": 64} {
		if got := segmentsOf(release); got != want {
			t.Errorf("segmentsOf(%q) = %d, want %d", release, got, want)
		}
	}
}
