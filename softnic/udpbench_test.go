//go:build linux

package softnic_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/netip"
	"testing"
	"time"

	"ibverbx/softnic"
	"ibverbx/verbs"
)

// The UDP benchmarks run on loopback, with each side on a separate link, as two processes would. For
// comparison there are the bare system calls, checksums and copies without a protocol (BenchmarkUDPFloor), a
// ping-pong of bare datagrams (BenchmarkUDPRawLatency), and TCP (BenchmarkTCP).

var udpSizes = []struct {
	name  string
	bytes int
}{{"8B", 8}, {"64KiB", 64 * kib}, {"1MiB", mib}}

// udpDepth returns the number of outstanding requests for a size.
func udpDepth(size int) int { return max(4, min(1024, 4*mib/size)) }

// BenchmarkUDPWrite keeps RC writes outstanding on one QP.
func BenchmarkUDPWrite(b *testing.B) {
	for _, s := range udpSizes {
		b.Run(fmt.Sprintf("size=%s/mtu=4096", s.name), func(b *testing.B) {
			w := newUDPWork(b, s.bytes, udpDepth(s.bytes), nil)
			w.stream(b.N)
			w.report()
		})
	}
}

// BenchmarkUDPWriteFull is BenchmarkUDPWrite to a peer that requires full ICRCs, with packets of at
// most 4 KiB.
func BenchmarkUDPWriteFull(b *testing.B) {
	for _, s := range udpSizes {
		b.Run(fmt.Sprintf("size=%s/mtu=4096", s.name), func(b *testing.B) {
			w := newUDPWork(b, s.bytes, udpDepth(s.bytes), &udpVariant{icrc: softnic.ICRCFull})
			w.stream(b.N)
			w.report()
		})
	}
}

// BenchmarkUDPWriteSealed is BenchmarkUDPWrite with sealed packets. Compare it with BenchmarkUDPWrite and BenchmarkTLS
// of the same run, and with BenchmarkSealOpen of internal/seal.
func BenchmarkUDPWriteSealed(b *testing.B) {
	for _, s := range udpSizes {
		b.Run(fmt.Sprintf("size=%s/mtu=4096", s.name), func(b *testing.B) {
			w := newUDPWork(b, s.bytes, udpDepth(s.bytes), &udpVariant{sealed: true})
			w.stream(b.N)
			w.report()
		})
	}
}

// BenchmarkUDPWriteLatency posts one write and polls its completion: a round trip.
func BenchmarkUDPWriteLatency(b *testing.B) {
	b.Run("size=8B", func(b *testing.B) {
		w := newUDPWork(b, 8, 1, nil)
		for range b.N {
			w.stream(1)
		}
		w.report()
	})
}

// udpWork is a QP over UDP and a chain of equal requests for it.
type udpWork struct {
	b   *testing.B
	cq  verbs.CQ
	qp  verbs.QP
	wrs []verbs.SendWR
	wcs []verbs.WC
}

// udpVariant holds the parameters of a WRITE benchmark.
type udpVariant struct {
	sealed bool
	icrc   softnic.ICRC
}

func newUDPWork(b *testing.B, size, depth int, v *udpVariant) *udpWork {
	b.Helper()
	if v == nil {
		v = &udpVariant{}
	}
	var pds [2]verbs.PD
	var ctxs [2]verbs.Context
	for i, addr := range []string{"127.0.0.1", "127.0.0.2"} {
		link, err := softnic.NewUDPLink(&softnic.UDPConfig{ICRC: v.icrc})
		must(b, err)
		nic, err := softnic.New(link, softnic.Config{Addr: netip.MustParseAddr(addr)})
		must(b, err)
		b.Cleanup(func() {
			if s := nic.Stats(); s.Retransmits+s.BadICRC+s.SendDrops > 0 && testing.Verbose() {
				b.Logf("%s: %+v", addr, s)
			}
			must(b, nic.Close())
		})
		ctxs[i], err = nic.Open()
		must(b, err)
		pds[i], err = ctxs[i].AllocPD()
		must(b, err)
	}
	r := &rig{tb: b, pa: pds[0], pb: pds[1]}
	if v.sealed {
		r.sa, r.sb = newSeals(b)
	}
	src, srcMR := memory(b, pds[0], size)
	dst, dstMR := memory(b, pds[1], size)
	w := &udpWork{b: b, cq: newCQ(b, ctxs[0], 2*depth), wrs: make([]verbs.SendWR, depth), wcs: make([]verbs.WC, 64)}
	w.qp, _ = r.pair(verbs.RC, w.cq, newCQ(b, ctxs[1], 16), depth)
	for i := range w.wrs {
		wr := &w.wrs[i]
		*wr = verbs.SendWR{WRID: uint64(i), Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, RemoteAddr: dst.Addr(), RKey: dstMR.RKey()}
		wr.SetSGE(verbs.SGE{Addr: src.Addr(), Length: uint32(size), LKey: srcMR.LKey()})
	}
	b.ReportAllocs()
	b.SetBytes(int64(size))
	b.ResetTimer()
	return w
}

// stream posts n requests, up to the queue limit at a time, and polls until all are complete.
func (w *udpWork) stream(n int) {
	for posted, done := 0, 0; done < n; {
		if free := len(w.wrs) - (posted - done); posted < n && free >= len(w.wrs)/4 {
			k, err := w.qp.PostSend(w.wrs[:min(free, n-posted)])
			if err != nil {
				w.b.Fatalf("PostSend = %d, %v, want no error", k, err)
			}
			posted += k
		}
		k, err := w.cq.Poll(w.wcs)
		if err != nil {
			w.b.Fatalf("Poll = %d, %v, want no error", k, err)
		}
		for i := range w.wcs[:k] {
			if w.wcs[i].Status != verbs.StatusSuccess {
				w.b.Fatal(w.wcs[i].Err())
			}
		}
		done += k
	}
}

func (w *udpWork) report() {
	w.b.ReportMetric(float64(w.b.N)/w.b.Elapsed().Seconds(), "msgs/s")
}

// BenchmarkTCP sends messages over TCP on loopback.
func BenchmarkTCP(b *testing.B) {
	for _, s := range udpSizes {
		b.Run("size="+s.name, func(b *testing.B) { sendStream(b, s.bytes, nil) })
	}
}

// BenchmarkTLS sends messages over TLS 1.3 on loopback.
func BenchmarkTLS(b *testing.B) {
	cfg := newTLSConfig(b)
	for _, s := range udpSizes {
		b.Run("size="+s.name, func(b *testing.B) { sendStream(b, s.bytes, cfg) })
	}
}

// newTLSConfig returns a configuration for both ends, with an unverified certificate.
func newTLSConfig(b *testing.B) *tls.Config {
	b.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(b, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	must(b, err)
	return &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, InsecureSkipVerify: true, MinVersion: tls.VersionTLS13,
	}
}

// sendStream sends messages of size bytes over TCP, with TLS unless cfg is nil.
func sendStream(b *testing.B, size int, cfg *tls.Config) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(b, err)
	defer func() { must(b, l.Close()) }()
	out, err := net.Dial("tcp", l.Addr().String())
	must(b, err)
	in, err := l.Accept()
	must(b, err)
	if cfg != nil {
		out, in = tls.Client(out, cfg), tls.Server(in, cfg)
	}
	done := make(chan error, 1)
	buf, into := bytesOf(b, size), bytesOf(b, max(size, 64*kib))
	go func() {
		for left := size * b.N; left > 0; {
			n, err := in.Read(into[:min(left, len(into))])
			if err != nil {
				done <- err
				return
			}
			left -= n
		}
		_, err := in.Write(into[:1])
		done <- err
	}()
	b.SetBytes(int64(size))
	b.ResetTimer()
	for range b.N {
		_, err := out.Write(buf)
		must(b, err)
	}
	_, err = io.ReadFull(out, buf[:1])
	must(b, err)
	b.StopTimer()
	must(b, <-done)
	must(b, out.Close())
	_ = in.Close() // TLS returns an error if the peer has already closed
}
