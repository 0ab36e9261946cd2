package stream

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"os"
	"os/exec"
	"testing"

	"ibverbx/internal/enginetest/nodetest"
	"ibverbx/node"
	ibpeer "ibverbx/peer"
)

// asSink runs the test binary as the other end of a benchmark: "sealed" or "unsealed".
const asSink = "IBVERBX_TEST_SINK"

// sink is the main function of a process that counts data received over streams, TCP and TLS, until EOF on
// standard input. It writes a byte for every benchBytes. Its first output line holds its addresses.
func sink(kind string) int {
	cfg := (&nodetest.Host{}).Config()
	cfg.Unsealed = kind != "sealed"
	n, err := node.New(context.Background(), cfg)
	var streams, tcp, secure net.Listener
	if err == nil {
		streams, err = Listen(n, "sink")
	}
	if err == nil {
		tcp, err = net.Listen("tcp", "127.0.0.1:0")
	}
	certificate := httptest.NewTLSServer(nil)
	if err == nil {
		secure, err = tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: certificate.TLS.Certificates})
	}
	var raw *ibpeer.Listener
	if err == nil {
		raw, err = ibpeer.Listen(context.Background(), "127.0.0.1:0", rawConfig(&network{}))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	for _, l := range []net.Listener{streams, tcp, secure} {
		go func() {
			for c, err := l.Accept(); err == nil; c, err = l.Accept() {
				go count(c)
			}
		}()
	}
	go func() { _, _ = raw.Accept(context.Background()) }()
	fmt.Println(n.Addr(), tcp.Addr(), secure.Addr(), raw.Addr())
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

// count reads from a connection and writes a byte for every benchBytes.
func count(c net.Conn) {
	_, _ = io.Copy(&counter{to: c}, c)
}

// counter counts the bytes written to it, and writes a byte for every benchBytes.
type counter struct {
	sum int
	to  io.Writer
}

func (c *counter) Write(b []byte) (int, error) {
	for c.sum += len(b); c.sum >= benchBytes; c.sum -= benchBytes {
		if _, err := c.to.Write([]byte{1}); err != nil {
			return 0, err
		}
	}
	return len(b), nil
}

// sinkProcess holds the addresses of a process that runs sink.
type sinkProcess struct{ node, tcp, secure, raw string }

// newSink starts a process, which exits with the benchmark.
func newSink(b *testing.B, kind string) (s sinkProcess) {
	b.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env, cmd.Stderr = append(os.Environ(), asSink+"="+kind), os.Stderr
	stdin, err := cmd.StdinPipe()
	wantOK(b, "StdinPipe", err)
	out, err := cmd.StdoutPipe()
	wantOK(b, "StdoutPipe", err)
	wantOK(b, "Start", cmd.Start())
	b.Cleanup(func() { wantOK(b, "the other process", errors.Join(stdin.Close(), cmd.Wait())) })
	line, err := bufio.NewReader(out).ReadString('\n')
	wantOK(b, "the first line of the other process", err)
	_, err = fmt.Sscan(line, &s.node, &s.tcp, &s.secure, &s.raw)
	wantOK(b, "the addresses of the other process", err)
	return s
}

// dial opens a stream.
func (s sinkProcess) dial(b *testing.B, sealed bool) net.Conn {
	b.Helper()
	n := (&network{}).start(b, func(c *node.Config) { c.Unsealed = !sealed })
	p, err := n.Peer(soon(b), s.node)
	wantOK(b, "Peer", err)
	c, err := Dial(soon(b), p, "sink")
	wantOK(b, "Dial", err)
	b.Cleanup(func() { _ = c.Close() })
	return c
}

// copies returns a function that writes benchBytes to a connection, 1 MiB at a time, and waits until the other end has read them.
func copies(b *testing.B, c net.Conn, err error) func() {
	b.Helper()
	wantOK(b, "Dial", err)
	b.Cleanup(func() { _ = c.Close() })
	block := make([]byte, 1<<20)
	return func() {
		for range benchBytes >> 20 {
			if _, err := c.Write(block); err != nil {
				b.Fatalf("Write: got %v, want no error", err)
			}
		}
		if _, err := io.ReadFull(c, block[:1]); err != nil {
			b.Fatalf("Read: got %v, want no error", err)
		}
	}
}

// benchUDP is BenchmarkStream/link=udp.
func benchUDP(b *testing.B) {
	s := newSink(b, "unsealed")
	raw, err := ibpeer.Dial(soon(b), s.raw, rawConfig(&network{}))
	wantOK(b, "Dial", err)
	defer func() { wantOK(b, "Close", raw.Close()) }()
	tcp, err := net.Dial("tcp", s.tcp)
	alternate(b, benchBytes, copies(b, s.dial(b, false), nil), map[string]func(){
		"raw": func() { (&rawPair{here: raw}).write(b, benchBytes>>20) }, "tcp": copies(b, tcp, err),
	})
}

// benchSealed is BenchmarkStream/link=udp/sealed.
func benchSealed(b *testing.B) {
	s := newSink(b, "sealed")
	secure, err := tls.Dial("tcp", s.secure, &tls.Config{InsecureSkipVerify: true})
	alternate(b, benchBytes, copies(b, s.dial(b, true), nil), map[string]func(){"tls": copies(b, secure, err)})
}
