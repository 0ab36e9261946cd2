package traffic_test

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"ibverbx/internal/enginetest"
	"ibverbx/internal/seal"
)

// BenchmarkSealedCPU compares the CPU time of one QP over UDP with sealed and with plain packets, alternating
// as in BenchmarkLanesCPU. It also measures sealing and opening the same packets alone. Times are per
// message; tls-ns is the time for the same bytes over TLS 1.3 on TCP. rate is the sealed rate relative to the
// plain one, and of-tls relative to TLS. added is the added time relative to Seal and Open alone. All are
// medians.
func BenchmarkSealedCPU(b *testing.B) {
	for _, size := range []int{8, 64 << 10, 1 << 20} {
		b.Run(fmt.Sprintf("size=%d", size), func(b *testing.B) {
			plain := newWireWork(b, wireConfig{rails: 1, lanes: 1}, 1, size)
			sealed := newWireWork(b, wireConfig{rails: 1, lanes: 1, sealed: true}, 11, size)
			alone, stream := newSealWork(b, size), newTLSWork(b, size)
			n := min(wireMessages, wirePart/size)
			found := map[string][]float64{}
			for b.Loop() {
				p, s, a, t := plain.move(n), sealed.move(n), alone.move(n), stream.move(n)
				each := float64(n)
				for name, v := range map[string]float64{
					"plain-ns": float64(p) / each, "sealed-ns": float64(s) / each, "alone-ns": float64(a) / each, "tls-ns": float64(t) / each,
					"rate": float64(p) / float64(s), "added": float64(s-p) / float64(a), "of-tls": float64(t) / float64(s),
				} {
					found[name] = append(found[name], v)
				}
			}
			for name, all := range found {
				slices.Sort(all)
				b.ReportMetric(all[len(all)/2], name)
			}
		})
	}
}

// sealWork seals and opens the packets of WRITEs, without their acknowledgements.
type sealWork struct {
	b    *testing.B
	ends [2]*seal.Association
	// packets holds the packets of one message.
	packets [][]byte
}

func newSealWork(b *testing.B, size int) *sealWork {
	b.Helper()
	const mtu, header, first = 4096, 12, 28
	w := &sealWork{b: b}
	greetings := [2]seal.Greeting{seal.NewGreeting(1, 0, [seal.NonceLen]byte{1}), seal.NewGreeting(2, 0, [seal.NonceLen]byte{2})}
	for i := range w.ends {
		s, err := seal.NewSession(make([]byte, 32), i == 0)
		enginetest.Must(b, err)
		w.ends[i], err = s.Associate(&greetings[i], &greetings[1-i])
		enginetest.Must(b, err)
	}
	for left := size; left > 0; left -= mtu {
		n := header
		if left == size {
			n = first
		}
		w.packets = append(w.packets, make([]byte, seal.Overhead+n+min(left, mtu)))
	}
	return w
}

// move seals and opens the packets of n messages and returns the CPU time of the process.
func (w *sealWork) move(n int) time.Duration {
	start := cpuTime(w.b)
	for range n {
		for _, p := range w.packets {
			w.ends[0].Seal(p, 0)
			if _, v := w.ends[1].Open(p); v != seal.Opened {
				w.b.Fatalf("verdict %d, want %d", v, seal.Opened)
			}
		}
	}
	return cpuTime(w.b) - start
}

// tlsWork sends messages over TLS on the loopback.
type tlsWork struct {
	b       *testing.B
	out, in net.Conn
	from    []byte
	to      []byte
}

func newTLSWork(b *testing.B, size int) *tlsWork {
	b.Helper()
	certified := httptest.NewTLSServer(nil)
	b.Cleanup(certified.Close)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	enginetest.Must(b, err)
	out, err := net.Dial("tcp", l.Addr().String())
	enginetest.Must(b, err)
	in, err := l.Accept()
	enginetest.Must(b, err)
	enginetest.Must(b, l.Close())
	w := &tlsWork{b: b, from: make([]byte, size), to: make([]byte, max(size, 64<<10))}
	w.out = tls.Client(out, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13})
	w.in = tls.Server(in, certified.TLS)
	b.Cleanup(func() {
		_ = out.Close() // TLS would wait for the other end
		_ = in.Close()
	})
	w.move(1)
	return w
}

// move sends n messages and returns the CPU time of the process when all have arrived.
func (w *tlsWork) move(n int) time.Duration {
	start := cpuTime(w.b)
	sent := make(chan error, 1)
	go func() {
		for range n {
			if _, err := w.out.Write(w.from); err != nil {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	for left := n * len(w.from); left > 0; {
		k, err := io.ReadAtLeast(w.in, w.to[:min(left, len(w.to))], 1)
		enginetest.Must(w.b, err)
		left -= k
	}
	enginetest.Must(w.b, <-sent)
	return cpuTime(w.b) - start
}
