package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"time"

	"ibverbx"
	"ibverbx/bootstrap"
	"ibverbx/node"
	"ibverbx/peer"
	"ibverbx/stream"
	"ibverbx/transfer"
)

// worker is one process of a measurement. "KIND serve ADDRESS SIZE" prints its address and serves until it is killed.
// "KIND ADDRESS SIZE TIME" measures and prints a number.
func worker(ctx context.Context, args []string, stdout io.Writer) error {
	if len(args) != 4 {
		return fmt.Errorf("got %d arguments, want a kind, an address, a size and a time", len(args))
	}
	kind, err := kindOf(args[0])
	if err != nil {
		return err
	}
	if args[1] == "serve" {
		size, err := strconv.Atoi(args[3])
		if err != nil {
			return err
		}
		return kind.serve(ctx, args[2], size, func(addr string) { fmt.Fprintln(stdout, "listening on "+addr) })
	}
	size, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	spell, err := time.ParseDuration(args[3])
	if err != nil {
		return err
	}
	v, err := kind.measure(ctx, args[1], size, spell)
	if err == nil {
		_, err = fmt.Fprintln(stdout, v)
	}
	return err
}

// kind is one kind of worker.
type kind struct {
	serve   func(ctx context.Context, addr string, size int, ready func(addr string)) error
	measure func(ctx context.Context, addr string, size int, spell time.Duration) (float64, error)
}

// kindOf returns a kind by name.
func kindOf(name string) (kind, error) {
	switch name {
	case "copy":
		return kind{measure: goCopy}, nil
	case "tcp":
		return kind{serveTCP, measureTCP}, nil
	case "tls":
		return kind{serveTLS, measureTLS}, nil
	case "stream":
		return streams(node.Config{Open: loopback(), Fabric: peer.Fabric{Unsealed: true}}), nil
	case "stream-sealed":
		return streams(node.Config{Open: loopback()}), nil
	case "stream-host":
		return streams(node.Config{Fabric: peer.Fabric{Unsealed: true}}), nil
	case "https":
		return kind{serve: serveHTTPS}, nil
	case "transfer":
		return kind{serveTransfer, measureTransfer}, nil
	case "poll":
		return kind{servePoll, measurePoll}, nil
	}
	return kind{}, fmt.Errorf("unknown kind %q", name)
}

// loopback opens a software NIC on the loopback interface.
func loopback() func() (peer.NICs, error) { return peer.OpenSoftNICs(netip.MustParseAddr("127.0.0.1")) }

// goCopy measures Go's copy, in GB/s.
func goCopy(_ context.Context, _ string, size int, spell time.Duration) (float64, error) {
	from, to := make([]byte, size), make([]byte, size)
	for i := range from {
		from[i] = byte(i) // a page that was never written is the zero page, which is always in the cache
	}
	batch := max(1, (16<<20)/size)
	return rate(spell, func() (int, error) {
		for range batch {
			copy(to, from)
		}
		return batch * size, nil
	})
}

// rate calls f, which transfers some bytes, for a while, and returns GB/s.
func rate(spell time.Duration, f func() (int, error)) (float64, error) {
	if _, err := f(); err != nil { // warm up
		return 0, err
	}
	moved, begin := 0, time.Now()
	for {
		n, err := f()
		if err != nil {
			return 0, err
		}
		moved += n
		if took := time.Since(begin); took >= spell {
			return float64(moved) / float64(took.Nanoseconds()), nil
		}
	}
}

// drain reads all arriving data and confirms each 16 MiB with a byte.
func drain(c net.Conn, size int) {
	defer func() { _ = c.Close() }()
	b := make([]byte, size)
	for read := 0; ; {
		n, err := c.Read(b)
		for read += n; read >= burst; read -= burst {
			if _, err := c.Write(b[:1]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// burst is the number of bytes between two confirmations.
const burst = 16 << 20

// fill writes messages of size, two bursts at most without a confirmation, and returns the confirmed GB/s.
func fill(c net.Conn, size int, spell time.Duration) (float64, error) {
	defer func() { _ = c.Close() }()
	b, one := make([]byte, size), make([]byte, 1)
	send := func() error {
		for sent := 0; sent < burst; sent += size {
			if _, err := c.Write(b[:min(size, burst-sent)]); err != nil {
				return err
			}
		}
		return nil
	}
	if err := send(); err != nil {
		return 0, err
	}
	return rate(spell, func() (int, error) {
		if err := send(); err != nil {
			return 0, err
		}
		_, err := io.ReadFull(c, one)
		return burst, err
	})
}

// acceptAll serves a listener until ctx is done.
func acceptAll(ctx context.Context, l net.Listener, size int) error {
	context.AfterFunc(ctx, func() { _ = l.Close() })
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go drain(c, size)
	}
}

func serveTCP(ctx context.Context, addr string, size int, ready func(string)) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	ready(l.Addr().String())
	return acceptAll(ctx, l, size)
}

func measureTCP(ctx context.Context, addr string, size int, spell time.Duration) (float64, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return 0, err
	}
	return fill(c, size, spell)
}

func serveTLS(ctx context.Context, addr string, size int, ready func(string)) error {
	l, err := listenTLS(addr)
	if err != nil {
		return err
	}
	ready(l.Addr().String())
	return acceptAll(ctx, l, size)
}

// serveHTTPS serves the files of the working directory.
func serveHTTPS(_ context.Context, addr string, _ int, ready func(string)) error {
	l, err := listenTLS(addr)
	if err != nil {
		return err
	}
	ready(l.Addr().String())
	s := &http.Server{Handler: http.FileServer(http.Dir(".")), ReadHeaderTimeout: time.Minute}
	return s.Serve(l)
}

// listenTLS listens with a new certificate.
func listenTLS(addr string) (net.Listener, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	cert := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	return tls.Listen("tcp", addr, &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}})
}

func measureTLS(ctx context.Context, addr string, size int, spell time.Duration) (float64, error) {
	// The certificate was created a moment ago, and its verification does not affect the speed of
	// TLS.
	d := &tls.Dialer{Config: &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true}}
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return 0, err
	}
	return fill(c, size, spell)
}

// start starts a Node.
func start(ctx context.Context, listen string, cfg node.Config) (*node.Node, error) {
	cfg.Auth, cfg.Listen = bootstrap.Config{Token: []byte(secret)}, listen
	return node.New(ctx, cfg)
}

// streams is a worker with a stream between its two ends.
func streams(cfg node.Config) kind {
	return kind{
		serve: func(ctx context.Context, addr string, size int, ready func(string)) error {
			n, err := start(ctx, addr, cfg)
			if err != nil {
				return err
			}
			l, err := stream.Listen(n, "bench")
			if err != nil {
				return err
			}
			ready(n.Addr().String())
			return errors.Join(acceptAll(ctx, l, size), n.Close())
		},
		measure: func(ctx context.Context, addr string, size int, spell time.Duration) (float64, error) {
			n, err := start(ctx, "", cfg)
			if err != nil {
				return 0, err
			}
			p, err := n.Peer(ctx, addr)
			if err != nil {
				return 0, err
			}
			c, err := stream.Dial(ctx, p, "bench")
			if err != nil {
				return 0, err
			}
			v, err := fill(c, size, spell)
			return v, errors.Join(err, n.Close())
		},
	}
}

func serveTransfer(ctx context.Context, addr string, size int, ready func(string)) error {
	n, err := start(ctx, addr, node.Config{Fabric: peer.Fabric{Unsealed: true}})
	if err != nil {
		return err
	}
	e, err := transfer.New(transfer.Config{Node: n})
	if err != nil {
		return err
	}
	if _, err := e.Alloc("bench", int64(size), transfer.SegmentConfig{DefaultAccess: transfer.Read}); err != nil {
		return err
	}
	ready(n.Addr().String())
	<-ctx.Done()
	return n.Close()
}

// measureTransfer repeatedly gets a segment, up to 16 MiB at a time.
func measureTransfer(ctx context.Context, addr string, size int, spell time.Duration) (_ float64, err error) {
	n, err := start(ctx, "", node.Config{Fabric: peer.Fabric{Unsealed: true}})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, n.Close()) }()
	e, err := transfer.New(transfer.Config{Node: n})
	if err != nil {
		return 0, err
	}
	p, err := e.Peer(ctx, addr)
	if err != nil {
		return 0, err
	}
	from, err := p.Open(ctx, "bench", transfer.Read)
	if err != nil {
		return 0, err
	}
	to, err := e.Alloc("target", int64(size), transfer.SegmentConfig{})
	if err != nil {
		return 0, err
	}
	flight := make([]*transfer.Transfer, max(1, burst/size))
	next := 0
	return rate(spell, func() (int, error) {
		if t := flight[next]; t != nil {
			if err := t.Wait(ctx); err != nil {
				return 0, err
			}
		}
		flight[next] = p.Get(ctx, to.Slice(0, int64(size)), from.At(0))
		next = (next + 1) % len(flight)
		return size, nil
	})
}

func servePoll(ctx context.Context, addr string, _ int, ready func(string)) error {
	l, err := peer.Listen(ctx, addr, pollConfig())
	if err != nil {
		return err
	}
	ready(l.Addr().String())
	s, err := l.Accept(ctx)
	if err != nil {
		return err
	}
	return s.WaitDone(ctx)
}

func pollConfig() peer.Config {
	return peer.Config{Auth: bootstrap.Config{Token: []byte(secret)}, Fabric: peer.Fabric{Link: peer.LinkShm}, QP: ibverbx.Config{Lanes: 2}}
}

// measurePoll polls an idle VirtualCQ and returns nanoseconds per poll and rail.
func measurePoll(ctx context.Context, addr string, _ int, spell time.Duration) (_ float64, err error) {
	s, err := peer.Dial(ctx, addr, pollConfig())
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	var wcs [16]ibverbx.WC
	polls, begin := 0, time.Now()
	for time.Since(begin) < spell {
		for range 1000 {
			if _, err := s.CQ.Poll(wcs[:]); err != nil {
				return 0, err
			}
		}
		polls += 1000
	}
	return float64(time.Since(begin).Nanoseconds()) / float64(polls) / float64(s.Rails.Len()), nil
}
