//go:build linux

package softnic

import (
	"bytes"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"ibverbx/internal/roce"
)

// floodRate is how many packets per second an attacker sends.
const floodRate = 100_000

// BenchmarkSealedFlood: an attacker sends 100,000 packets per second to the socket of a NIC, beside transfers whose bytes
// are compared. In turns they are forged under the right index, counter and epoch, and random bytes of the same
// length. ratio is the median of the transfers' rate with forged packets to that with random ones. No packet of the attacker
// is accepted.
func BenchmarkSealedFlood(b *testing.B) {
	f := newFortress(b)
	from, to := f.qps[0][0], f.qps[1][0]
	for i := range f.mem[0].Bytes()[:fortressBytes] {
		f.mem[0].Bytes()[i] = byte(i * 7)
	}
	f.write(from, to, 5000)
	var ratios, rates []float64
	for b.Loop() {
		forged := f.flooded(from, to, f.forged(to, f.header(to)))
		noise := make([]byte, roce.DatagramLen(roce.OpWriteOnly, 64)+sealOverhead)
		for i := range noise {
			noise[i] = byte(rand.Uint32())
		}
		rates = append(rates, forged)
		ratios = append(ratios, forged/f.flooded(from, to, noise))
	}
	slices.Sort(ratios)
	slices.Sort(rates)
	b.ReportMetric(rates[len(rates)/2]/1e6, "MB/s")
	b.ReportMetric(ratios[len(ratios)/2], "ratio")
	b.ReportMetric(0, "ns/op")
	s := f.nics[1].Stats()
	if s.Seals.Bad == 0 || s.Seals.Unknown+s.Malformed == 0 || bytes.Contains(f.mem[1].Bytes()[fortressBytes:], []byte{0xee, 0xee}) {
		b.Errorf("dropped %v, want forged and random packets among them, and none accepted", drops(s))
	}
}

// flooded returns how many bytes per second arrive while an attacker sends copies of a packet.
func (f *fortress) flooded(from, to *qp, packet []byte) float64 {
	stop := make(chan struct{})
	var attacker sync.WaitGroup
	attacker.Go(func() {
		c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(f.nics[1].sealed.conn.Addr()))
		if err != nil {
			f.t.Error(err)
			return
		}
		defer func() { _ = c.Close() }()
		begin := time.Now()
		for sent := 0; ; {
			select {
			case <-stop:
				return
			case <-time.After(100 * time.Microsecond):
			}
			for due := int(time.Since(begin).Seconds() * floodRate); sent < due; sent++ {
				_, _ = c.Write(packet) // a full socket buffer drops it
			}
		}
	})
	const size, turn = 64 << 10, 200 * time.Millisecond
	begin, n := time.Now(), 0
	for ; time.Since(begin) < turn; n++ {
		f.write(from, to, size)
		if !bytes.Equal(f.mem[1].Bytes()[:size], f.mem[0].Bytes()[:size]) {
			f.t.Errorf("message %d has wrong bytes", n)
		}
	}
	took := time.Since(begin)
	close(stop)
	attacker.Wait()
	return float64(n) * size / took.Seconds()
}
