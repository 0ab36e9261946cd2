package shm

import (
	"errors"
	"net"
	"os"
	"runtime"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// conns returns both ends of a connection.
func conns(t *testing.T) (a, b *Conn, raw *net.UnixConn) {
	t.Helper()
	pair, err := Pair()
	check(t, err)
	var cs [2]*Conn
	for i := range pair {
		cs[i], err = NewConn(pair[i])
		check(t, err)
		t.Cleanup(func() { _ = cs[i].Close() })
	}
	return cs[0], cs[1], pair[1]
}

// TestSegment: the peer sees the owner's writes, but cannot write, grow or shrink the segment.
func TestSegment(t *testing.T) {
	a, b, _ := conns(t)
	own, fd, err := Create(8192, true)
	check(t, err)
	defer Unmap(own)
	if !a.Send(Message{Kind: Hello, Addr: 7, Size: 8192}, fd) {
		t.Fatal("the socket takes no message")
	}
	Close(fd)
	m, fd, err := b.Receive()
	check(t, err)
	if m != (Message{Kind: Hello, Addr: 7, Size: 8192}) {
		t.Fatalf("received %+v", m)
	}
	for name, err := range map[string]error{
		"write": func() error { _, err := unix.Pwrite(fd, []byte{1}, 0); return err }(), "grow": unix.Ftruncate(fd, 16384), "shrink": unix.Ftruncate(fd, 0),
	} {
		if !errors.Is(err, unix.EPERM) {
			t.Errorf("%s = %v, want %v", name, err, unix.EPERM)
		}
	}
	again, err := unix.Dup(fd)
	check(t, err)
	if _, err := Map(again, 8192, true); err == nil {
		t.Error("the peer maps the segment for writing")
	}
	theirs, err := Map(fd, 8192, false)
	check(t, err)
	defer Unmap(theirs)
	own[5000] = 3
	if theirs[5000] != 3 {
		t.Error("the peer does not see a byte of the owner")
	}
}

// TestMapRefuses: files whose access the peer could make fault are not mapped.
func TestMapRefuses(t *testing.T) {
	memfd := func(flags, seals int) int {
		fd, err := unix.MemfdCreate("test", flags|unix.MFD_ALLOW_SEALING)
		check(t, err)
		check(t, unix.Ftruncate(fd, 8192))
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
		check(t, err)
		return fd
	}
	plain, err := os.CreateTemp(t.TempDir(), "")
	check(t, err)
	check(t, plain.Truncate(8192))
	file, err := unix.Dup(int(plain.Fd()))
	check(t, err)
	check(t, plain.Close())
	const both = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW
	for _, tt := range []struct {
		name string
		fd   int
		size uint64
	}{
		{"a file", file, 8192},
		{"memory without seals", memfd(0, 0), 8192},
		{"memory that may shrink", memfd(0, unix.F_SEAL_GROW), 8192},
		{"memory that is shorter", memfd(0, both), 8193},
		{"no bytes", memfd(0, both), 0},
		{"bytes that cannot be addressed", memfd(0, both), 1 << 63},
		{"no descriptor", -1, 8192},
	} {
		if b, err := Map(tt.fd, tt.size, false); err == nil {
			t.Errorf("Map of %s = %d bytes, want an error", tt.name, len(b))
		}
	}
	b, err := Map(memfd(0, both), 8192, true)
	check(t, err)
	Unmap(b)
}

// TestReceiveRefuses: an invalid message, a surplus or missing descriptor, or a closed socket fails
// the connection.
func TestReceiveRefuses(t *testing.T) {
	good := Message{Kind: Revoke, Key: 1}.encode()
	hello := Message{Kind: Hello}.encode()
	bad := good
	bad[5] = 9
	without, long, with, old := good, Message{Kind: ShareDevice, Handle: "handle"}.encode(), good, good
	without[5], long[32], with[32], old[4] = byte(ShareDevice), MaxHandle+1, 1, 1
	rights := func() []byte { return unix.UnixRights(0) }
	for _, tt := range []struct {
		name   string
		bytes  []byte
		rights []byte
	}{
		{"another kind", bad[:], nil},
		{"half a message", good[:10], nil},
		{"a device without a handle", without[:], nil},
		{"a handle that is too long", long[:], nil},
		{"a recall with a handle", with[:], nil},
		{"another version", old[:32], nil},
		{"another protocol", []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), nil},
		{"a recall with a descriptor", good[:], rights()},
		{"a hello without one", hello[:], nil},
		{"nothing", nil, nil},
	} {
		a, b, raw := conns(t)
		_ = b
		if tt.bytes != nil {
			_, _, err := raw.WriteMsgUnix(tt.bytes, tt.rights, nil)
			check(t, err)
		}
		check(t, raw.Close())
		if m, fd, err := a.Receive(); err == nil || fd != -1 {
			t.Errorf("Receive after %s = %+v, %d, %v, want an error", tt.name, m, fd, err)
		}
	}
}

// TestBell: no ring is lost. One side counts up and rings. The other sleeps whenever it has caught
// up.
func TestBell(*testing.T) {
	mine, yours := make([]byte, BellSize), make([]byte, BellSize)
	var a, b Bell
	a.Init(mine, yours)
	b.Init(yours, mine)
	var count, seen atomic.Uint32
	const rounds = 20_000
	go func() {
		for n := uint32(1); n <= rounds; n++ {
			count.Store(n)
			a.Ring()
			for seen.Load() != n {
				runtime.Gosched()
			}
		}
	}()
	for n := uint32(0); n < rounds; {
		b.Sleep(func() bool { return count.Load() != n })
		if c := count.Load(); c != n {
			n = c
			seen.Store(n)
		}
	}
}

// TestReceiveClosesSurplusDescriptors: a peer that sends two descriptors with a message fails the
// connection, and neither stays open.
func TestReceiveClosesSurplusDescriptors(t *testing.T) {
	open := func() int {
		list, err := os.ReadDir("/proc/self/fd")
		check(t, err)
		return len(list)
	}
	a, _, raw := conns(t)
	hello := Message{Kind: Hello}.encode()
	before := open()
	for range 8 {
		_, _, err := raw.WriteMsgUnix(hello[:], unix.UnixRights(0, 1), nil)
		check(t, err)
		if _, fd, err := a.Receive(); err == nil {
			Close(fd)
		}
	}
	if after := open(); after > before {
		t.Errorf("%d descriptors are open after 8 messages with two each, %d before", after, before)
	}
}
