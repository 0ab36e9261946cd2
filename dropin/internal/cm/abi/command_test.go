package abi

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"ibverbx/dropin/internal/cm"
	"ibverbx/verbs"
)

// deadEnd is a Link that never delivers a message.
type deadEnd struct{ local netip.AddrPort }

func (deadEnd) Bind(addr netip.AddrPort, _ cm.PortOptions) (cm.Port, error) {
	return deadEnd{addr}, nil
}

func (deadEnd) Resolve(p cm.Port, _, _ netip.AddrPort, _ cm.PortOptions) (cm.Port, error) {
	if p == nil {
		p = deadEnd{netip.MustParseAddrPort("127.0.0.1:9")}
	}
	return p, nil
}

func (deadEnd) IsLocal(netip.Addr) bool                            { return true }
func (d deadEnd) Local() netip.AddrPort                            { return d.local }
func (deadEnd) Listen(func(cm.Conn, *cm.Message) cm.Handler) error { return nil }
func (deadEnd) Connect(*cm.Message, cm.Handler) cm.Conn            { return deadEnd{} }
func (deadEnd) Close()                                             {}
func (deadEnd) Send(*cm.Message)                                   {}
func (d deadEnd) Addrs() (local, remote netip.AddrPort)            { return d.local, d.local }
func (deadEnd) Add()                                               {}
func (deadEnd) Drop(int)                                           {}
func (deadEnd) later(time.Duration, func()) (stop func())          { return func() {} }

func newFile() *cm.File {
	a := netip.MustParseAddr("127.0.0.1")
	d := cm.Device{GUID: 0x0102030405060708, Index: 3, Addr: a, GID: verbs.GIDFromAddr(a), MTU: verbs.MTU4096}
	m := cm.New(cm.Config{Devices: []cm.Device{d}, Link: deadEnd{}, Later: deadEnd{}.later, Random: func() uint32 { return 1 }})
	return m.Open(deadEnd{})
}

// command returns a command as librdmacm writes it.
func command(t testing.TB, cmd uint32, body any) []byte {
	t.Helper()
	b := binary.NativeEndian.AppendUint32(nil, cmd)
	b = binary.NativeEndian.AppendUint16(b, uint16(binary.Size(body)))
	b = binary.NativeEndian.AppendUint16(b, 0)
	b, err := binary.Append(b, binary.NativeEndian, body)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestCommands: the commands of an active connection, with the kernel's responses.
func TestCommands(t *testing.T) {
	f := newFile()
	do := func(cmd uint32, body any, size int) []byte {
		t.Helper()
		b, err := Do(f, Call{Command: command(t, cmd, body)})
		if err != nil || len(b) != size {
			t.Fatalf("command %d = %d bytes, %v, want %d bytes", cmd, len(b), err, size)
		}
		return b
	}
	do(cmdCreateID, &createID{UID: 77, Space: cm.SpaceTCP}, 4)
	do(cmdResolveIP, &resolveIP{ID: 1, Dst: sockaddrOf(netip.MustParseAddrPort("127.0.0.9:7471"))}, 0)
	if e := do(cmdGetEvent, &destroyID{}, 336); binary.NativeEndian.Uint64(e) != 77 || e[8] != 1 {
		t.Errorf("event %x, want uid 77 and id 1", e[:20])
	}
	do(cmdResolveRoute, &resolveRoute{ID: 1}, 0)
	r := do(cmdQueryRoute, &destroyID{ID: 1}, 208)
	if binary.BigEndian.Uint64(r) != 0x0102030405060708 || r[200-4] != 1 || r[200] != 3 {
		t.Errorf("route %x, want the GUID, port 1 and device 3", r)
	}
	if a := do(cmdInitQPAttr, &initQPAttr{ID: 1, State: uint32(verbs.StateInit)}, 144); a[36] != 14 {
		t.Errorf("attributes %x, want access 14", a)
	}
	old := command(t, cmdConnect, &connect{ID: 1}) // without the newer fields
	binary.NativeEndian.PutUint16(old[4:], 280)
	if _, err := Do(f, Call{Command: old[:288]}); err != nil {
		t.Errorf("CONNECT of an old library: %v", err)
	}
	do(cmdDestroyID, &destroyID{ID: 1}, 4)
	for _, cmd := range []uint32{13, 19, 20, 21, 22, 99} {
		if _, err := Do(f, Call{Command: command(t, cmd, &destroyID{})}); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("command %d: %v, want EINVAL", cmd, err)
		}
	}
}

// TestSockaddr: addresses survive a round trip.
func TestSockaddr(t *testing.T) {
	for _, text := range []string{"127.0.0.1:7471", "[::1]:1", "[fe80::1%3]:65535", "0.0.0.0:0", "[::]:0"} {
		want := netip.MustParseAddrPort(text)
		s := sockaddrOf(want)
		if got, err := s.addrPort(); got != want || err != nil {
			t.Errorf("%s became %s, %v", want, got, err)
		}
	}
	if _, err := (&sockaddr{1}).addrPort(); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("an unknown family: %v, want EINVAL", err)
	}
}

func FuzzDo(f *testing.F) {
	f.Add(command(f, cmdCreateID, &createID{UID: 1, Space: cm.SpaceTCP}), []byte{1})
	f.Add(command(f, cmdConnect, &connect{ID: 1}), []byte{0, 0, 0, 1})
	f.Add(command(f, cmdReject, &reject{ID: 1}), []byte{})
	f.Fuzz(func(t *testing.T, b, value []byte) {
		file := newFile()
		if _, err := file.Create(1, cm.SpaceTCP); err != nil {
			t.Fatal(err)
		}
		out, err := Do(file, Call{Command: b, Value: value, From: file})
		if no := syscall.Errno(0); err != nil && !errors.As(err, &no) || len(out) > 336 {
			t.Errorf("%d bytes and error %v, want at most 336, and errnos", len(out), err)
		}
	})
}
