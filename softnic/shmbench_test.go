//go:build linux

package softnic_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"ibverbx/internal/ntcopy"
	"ibverbx/verbs"
)

// BenchmarkShmWrite writes to another process. The 8-byte case is a notified write and its response: an op is
// half a round trip, with both sides polling or both asleep. The reported minimum is the best 64 consecutive
// round trips, for a busy machine. Long writes run back to back, next to memcpy in the same run.
func BenchmarkShmWrite(b *testing.B) {
	for _, mode := range []string{shmEcho, shmSleep, shmTalk} {
		b.Run("size=8B/"+mode, func(b *testing.B) {
			s, _ := startFar(b, mode)
			s.receive(make([]verbs.RecvWR, 16)) // so that a receive is posted behind the request
			s.pingPong(1000, mode == shmSleep)
			least := time.Hour
			b.ResetTimer()
			for left := (b.N + 1) / 2; left > 0; left -= shmSignaled {
				at := time.Now()
				s.pingPong(shmSignaled, mode == shmSleep)
				least = min(least, time.Since(at))
			}
			b.StopTimer()
			b.ReportMetric(float64(least.Nanoseconds())/(2*shmSignaled), "least-ns/op")
		})
	}
	for _, size := range udpSizes[1:] { // long ones
		b.Run("size="+size.name, func(b *testing.B) { benchmarkShmStream(b, size.bytes) })
	}
}

// BenchmarkShmPost posts WRITEs of 8 bytes to another process, one or 16 per post. The reported minimum is the best 64 consecutive posts.
func BenchmarkShmPost(b *testing.B) {
	for _, chain := range []int{1, 16} {
		b.Run(fmt.Sprintf("chain=%d", chain), func(b *testing.B) {
			s, _ := startFar(b, shmIdle)
			s.awaitPublished()
			wrs := make([]verbs.SendWR, chain)
			for i := range wrs {
				wrs[i] = s.request(verbs.OpRDMAWrite, 8)
				wrs[i].Flags = 0
			}
			least := time.Hour
			b.ResetTimer()
			for left := b.N; left > 0; left -= shmSignaled * chain {
				at := time.Now()
				for k := range shmSignaled {
					wrs[chain-1].Flags = 0
					if last := shmSignaled / chain; k%last == last-1 {
						wrs[chain-1].Flags = verbs.SendSignaled
					}
					s.send(wrs)
					s.poll()
				}
				least = min(least, time.Since(at))
			}
			b.StopTimer()
			b.ReportMetric(float64(least.Nanoseconds())/float64(shmSignaled*chain), "least-ns/op")
		})
	}
}

// shmSignaled is the number of notified writes per send completion.
const shmSignaled = 64

// pingPong sends n notified writes and waits for each response.
func (s *shmSide) pingPong(n int, sleep bool) {
	ctx := context.Background()
	recvs := make([]verbs.RecvWR, 1)
	wrs := []verbs.SendWR{s.notice()}
	for k := range n {
		wrs[0].Flags = 0
		if k%shmSignaled == 0 {
			wrs[0].Flags = verbs.SendSignaled
		}
		s.send(wrs)
		s.receive(recvs)
		for answered := false; !answered; {
			wcs := s.next(ctx, sleep)
			for i := range wcs {
				if wcs[i].Status != verbs.StatusSuccess {
					s.tb.Fatal(wcs[i].Err())
				}
				answered = answered || wcs[i].Opcode == verbs.WCRecvRDMAWithImm
			}
		}
	}
}

// shmChain is the number of long WRITEs per post.
const shmChain = 8

// benchmarkShmStream alternates chains of WRITEs, an equal amount of memcpy between two buffers of the same
// size, and as many bytes over TCP on loopback.
func benchmarkShmStream(b *testing.B, size int) {
	s, _ := startFar(b, shmIdle)
	s.awaitPublished()
	wrs := make([]verbs.SendWR, shmChain)
	for i := range wrs {
		wrs[i] = s.request(verbs.OpRDMAWrite, size)
	}
	other, err := verbs.AllocMemory(size, nil)
	must(b, err)
	defer func() { must(b, other.Free()) }()
	tcp := newTCPStream(b, size)
	var spent [3]time.Duration
	ways := [3]func(){
		func() {
			s.send(wrs)
			s.await(len(wrs))
		},
		func() {
			for range wrs {
				ntcopy.Copy(other.Bytes(), s.mem.Bytes()[:size])
			}
		},
		func() { tcp.send(s.mem.Bytes()[:size], len(wrs)) },
	}
	was := s.nic.Stats().Direct
	chains := 0
	b.ResetTimer()
	for ; chains*shmChain < b.N; chains++ {
		for k := range ways { // each way goes first equally often
			way := (k + chains) % len(ways)
			ways[way]() // fills the caches
			at := time.Now()
			ways[way]()
			spent[way] += time.Since(at)
		}
	}
	b.StopTimer()
	n := float64(chains * shmChain)
	write, copied, streamed := spent[0], spent[1], spent[2]
	b.ReportMetric(write.Seconds()/n*1e9, "ns/write")
	b.ReportMetric(float64(size)*n/write.Seconds()/1e9, "GB/s")
	b.ReportMetric(copied.Seconds()/write.Seconds(), "of-memcpy")
	b.ReportMetric(streamed.Seconds()/write.Seconds(), "times-TCP")
	if d := s.nic.Stats().Direct - was; d != 2*uint64(n) {
		b.Errorf("%d of %.0f WRITEs were direct", d, 2*n)
	}
}

// tcpStream is a TCP connection whose far end reports when it has read everything.
type tcpStream struct {
	b    *testing.B
	out  net.Conn
	read chan error
	want chan int
}

func newTCPStream(b *testing.B, size int) *tcpStream {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(b, err)
	out, err := net.Dial("tcp", l.Addr().String())
	must(b, err)
	in, err := l.Accept()
	must(b, err)
	must(b, l.Close())
	s := &tcpStream{b: b, out: out, read: make(chan error), want: make(chan int)}
	into := bytesOf(b, size)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for n := range s.want {
			var err error
			for range n {
				if _, e := io.ReadFull(in, into); e != nil {
					err = e
				}
			}
			s.read <- err
		}
	}()
	b.Cleanup(func() {
		close(s.want)
		<-done
		must(b, out.Close())
		must(b, in.Close())
	})
	return s
}

// send sends a message n times and waits until all have been read.
func (s *tcpStream) send(message []byte, n int) {
	s.want <- n
	for range n {
		if _, err := s.out.Write(message); err != nil {
			s.b.Fatal(err)
		}
	}
	if err := <-s.read; err != nil {
		s.b.Fatal(err)
	}
}

// BenchmarkShmEmptyPoll polls an empty CQ.
func BenchmarkShmEmptyPoll(b *testing.B) {
	s, _ := shmPair(b, 4096)
	for b.Loop() {
		s.poll()
	}
}
