package stream_test

import (
	"context"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
)

// BenchmarkGRPC runs unary calls of 64 KiB, 8 concurrently. x-tcp is their speed relative to TCP on loopback.
func BenchmarkGRPC(b *testing.B) {
	for _, n := range networks {
		if n.name == "fault" || n.name == "shm" {
			continue
		}
		b.Run("link="+n.name, func(b *testing.B) {
			_, streams := connect(b, n).grpc(b)
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				b.Fatalf("Listen: got %v, want no error", err)
			}
			dial := func(ctx context.Context, addr string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, "tcp", addr)
			}
			_, tcp := serveGRPC(b, l, dial, l.Addr().String())
			calls(b, streams)
			calls(b, tcp)
			var times []time.Duration
			var ratios []float64
			for b.Loop() {
				x, y := calls(b, streams), calls(b, tcp)
				times = append(times, x)
				ratios = append(ratios, float64(y)/float64(x))
			}
			slices.Sort(times)
			slices.Sort(ratios)
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(batch/times[len(times)/2].Seconds(), "calls/s")
			b.ReportMetric(ratios[len(ratios)/2], "x-tcp")
		})
	}
}

// batch is the number of calls per clock reading.
const batch = 256

// calls runs a batch of calls and returns the elapsed time.
func calls(b *testing.B, c *grpc.ClientConn) time.Duration {
	b.Helper()
	body := make([]byte, 64<<10)
	began := time.Now()
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range batch / 8 {
				if _, err := call(context.Background(), c, "Unary", body); err != nil {
					b.Errorf("a call: got %v, want no error", err)
				}
			}
		})
	}
	all.Wait()
	return time.Since(began)
}
