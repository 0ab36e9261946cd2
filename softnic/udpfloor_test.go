//go:build linux

package softnic_test

import (
	"encoding/binary"
	"net/netip"
	"runtime"
	"sync"
	"testing"

	"ibverbx/internal/roce"
	"ibverbx/internal/udp"
	"ibverbx/verbs"
)

// floorPair returns two sets of loopback sockets.
func floorPair(b *testing.B) (a, c *udp.Conn) {
	b.Helper()
	open := func(addr string) *udp.Conn {
		conn, err := udp.Open(udp.Config{Addr: netip.MustParseAddr(addr), Port: 20000})
		must(b, err)
		b.Cleanup(func() { must(b, conn.Close()) })
		return conn
	}
	return open("127.0.0.1"), open("127.0.0.2")
}

const (
	floorMTU    = 4096
	floorHeader = 12 // a BTH
	floorFirst  = 28 // a BTH and a RETH
	floorICRC   = 4
	floorWindow = 512 // packets
)

// BenchmarkUDPFloor moves messages as cheaply as the system calls allow. Datagram sizes and runs match
// RoCE, with the same CRC over each on both sides. The sender computes it while copying the payload
// behind the header, the receiver before copying the payload to its destination. The receiver returns
// one number per quarter window, so that no buffer overflows. Memory has the same kind and size. PSNs,
// keys, QPs, completions and retransmissions are left out.
func BenchmarkUDPFloor(b *testing.B) {
	for _, s := range udpSizes {
		b.Run("size="+s.name, func(b *testing.B) {
			from, to := floorPair(b)
			var done sync.WaitGroup
			done.Add(1)
			packets := b.N * max(1, s.bytes/floorMTU)
			src, dst := bytesOf(b, s.bytes), bytesOf(b, s.bytes)
			go func() {
				defer done.Done()
				floorReceive(b, to, udp.NewDest(from.Addr(), true), dst, packets)
			}()
			b.SetBytes(int64(s.bytes))
			b.ResetTimer()
			floorSend(b, from, udp.NewDest(to.Addr(), true), src, packets)
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msgs/s")
			b.StopTimer()
			done.Wait()
		})
	}
}

func floorSend(b *testing.B, conn *udp.Conn, to *udp.Dest, src []byte, packets int) {
	w, r := conn.NewWriter(), conn.NewReader()
	perMessage := max(1, len(src)/floorMTU)
	var idle turnTimeout
	for sent, acked := 0, 0; acked < packets; {
		room := floorWindow - (sent - acked)
		if n := min(room, packets-sent); n >= floorWindow/4 || (n > 0 && n == packets-sent) {
			for ; n > 0; n-- {
				floorPacket(w, to, src, sent%perMessage)
				sent++
			}
			if dropped := w.Flush(); dropped != 0 {
				b.Errorf("%d datagrams dropped, want 0", dropped)
			}
		}
		k, err := r.Read()
		if err != nil {
			b.Errorf("Read = %v, want no error", err)
			return
		}
		idle.poll(k)
		for i := range k {
			d := r.Datagram(i).Data
			acked = max(acked, int(binary.BigEndian.Uint64(d[len(d)-8:])))
		}
	}
}

// bytesOf returns memory like the NICs'. Untouched memory on the Go heap maps one zero page repeatedly and
// would fit in the L1 cache.
func bytesOf(b *testing.B, size int) []byte {
	m, err := verbs.AllocMemory(size, nil)
	must(b, err)
	b.Cleanup(func() { must(b, m.Free()) })
	for i := range m.Bytes() {
		m.Bytes()[i] = byte(i)
	}
	return m.Bytes()
}

// floorPacket sends packet k of a message.
func floorPacket(w *udp.Writer, to *udp.Dest, src []byte, k int) {
	header := floorHeader
	if k == 0 {
		header = floorFirst
	}
	payload := src[k*min(floorMTU, len(src)):]
	payload = payload[:min(floorMTU, len(payload))]
	size := header + len(payload) + floorICRC
	d, _ := w.Next(to, 0, size)
	sum := roce.Sum(0).Add(d[:header]).Copy(d[header:], payload)
	binary.LittleEndian.PutUint32(d[size-floorICRC:], uint32(sum))
}

func floorReceive(b *testing.B, conn *udp.Conn, back *udp.Dest, dst []byte, packets int) {
	r, w := conn.NewReader(), conn.NewWriter()
	perMessage := max(1, len(dst)/floorMTU)
	var idle turnTimeout
	for got, told := 0, 0; got < packets; {
		n, err := r.Read()
		if err != nil {
			b.Errorf("Read = %v, want no error", err)
			return
		}
		if n == 0 {
			idle.pause(conn)
			continue
		}
		idle = 0
		for i := range n {
			d := r.Datagram(i)
			for p := d.Data; len(p) > 0; got++ {
				one := p[:min(d.Segment, len(p))]
				p = p[len(one):]
				k, body := got%perMessage, one[:len(one)-floorICRC]
				if uint32(roce.Sum(0).Add(body)) != binary.LittleEndian.Uint32(one[len(body):]) {
					b.Errorf("datagram %d has a wrong CRC", got)
				}
				copy(dst[k*min(floorMTU, len(dst)):], body[floorHeader:])
			}
		}
		if got-told >= floorWindow/4 || got == packets {
			told = got
			d, _ := w.Next(back, 0, 8)
			binary.BigEndian.PutUint64(d, uint64(got))
			w.Flush()
		}
	}
}

// patience counts empty reads: after several, an idle side sleeps, as a NIC does.
type turnTimeout int

func (p *turnTimeout) pause(conn *udp.Conn) {
	if *p++; *p < 64 {
		runtime.Gosched()
		return
	}
	*p = 0
	_ = conn.Wait() // the next read returns the error
}

// poll yields occasionally and never sleeps, like a polling program.
func (p *turnTimeout) poll(got int) {
	if *p++; got > 0 {
		*p = 0
	}
	if *p > 100 {
		udp.Yield()
	}
}

// BenchmarkUDPRawLatency sends datagrams of the sizes of an 8-byte WRITE and its
// acknowledgement forth and back, both sides reading as a NIC does.
func BenchmarkUDPRawLatency(b *testing.B) {
	a, c := floorPair(b)
	var done sync.WaitGroup
	done.Add(1)
	n := b.N
	pong := func(conn *udp.Conn, to *udp.Dest, size int, first bool) {
		w, r := conn.NewWriter(), conn.NewReader()
		var idle turnTimeout
		for i := range n {
			if first || i > 0 {
				w.Next(to, 0, size)
				w.Flush()
			}
			for k := 0; k == 0; {
				var err error
				if k, err = r.Read(); err != nil {
					b.Errorf("Read = %v, want no error", err)
					return
				}
				if first {
					idle.poll(k)
				} else if k == 0 {
					idle.pause(conn)
				}
			}
		}
		if !first {
			w.Next(to, 0, size)
			w.Flush()
		}
	}
	go func() {
		defer done.Done()
		pong(c, udp.NewDest(a.Addr(), true), 20, false)
	}()
	b.ResetTimer()
	pong(a, udp.NewDest(c.Addr(), true), 40, true)
	b.StopTimer()
	done.Wait()
}
