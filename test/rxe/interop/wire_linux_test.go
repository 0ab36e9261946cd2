package interop_test

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"ibverbx/internal/enginetest"
	"ibverbx/internal/roce"
	"ibverbx/verbs"
)

// TestKernelPackets makes the kernel send every kind of packet and checks internal/roce against
// each: it decodes, its ICRC is right for the IP header's identification, that identification is
// found without reading it, and encoding the decoded packet returns the same bytes. With
// IBVERBX_TEST_PACKETS=1 it prints one packet of each kind, in the format of
// internal/roce/testdata.
func TestKernelPackets(t *testing.T) {
	for row, family := range []string{"ipv6", "ipv4"} {
		t.Run(family, func(t *testing.T) {
			seen := map[uint8]bool{}
			kinds := map[[2]uint8]bool{} // opcode, and syndrome of an acknowledgement
			var e roce.Explainer
			var ids int
			for _, traffic := range []struct {
				typ verbs.QPType
				run func(net0 *tap, a, b *end)
			}{
				{verbs.RC, reliable},
				{verbs.RC, notReady},
				{verbs.RC, badKey},
				{verbs.UC, unreliable},
				{verbs.UD, datagrams},
			} {
				for _, p := range watch(t, traffic.typ, row, traffic.run) {
					check(t, p, &e)
					kind := [2]uint8{p.datagram[0]}
					if kind[0] == roce.OpAck {
						kind[1] = p.datagram[12]
					}
					if !kinds[kind] && os.Getenv("IBVERBX_TEST_PACKETS") == "1" {
						fmt.Printf("packet %s %02x %x\n", family, p.datagram[0], p.bytes)
					}
					seen[kind[0]], kinds[kind] = true, true
					if p.id != 0 {
						ids++
					}
				}
			}
			for op := range 256 {
				if ok := seen[uint8(op)]; ok != (roce.HeaderLen(uint8(op)) > 0 && uint8(op) != roce.CNP) {
					t.Errorf("opcode %#x was seen: %v, want every opcode but CNP", op, ok)
				}
			}
			t.Logf("%d packets had an identification other than 0", ids)
		})
	}
}

// watch runs traffic between rxe0 and rxe1 and returns its packets, as captured on net0. change is
// passed to connect.
func watch(t *testing.T, typ verbs.QPType, row int, run func(net0 *tap, a, b *end), change ...func(*verbs.QPAttr)) []packet {
	t.Helper()
	var ends [2]*end
	for i, device := range []string{"rxe0", "rxe1"} {
		ctx := openDevice(t, device)
		gid, err := ctx.QueryGID(1, row)
		enginetest.Must(t, err)
		ends[i] = newEnd(t, ctx, typ, gid)
	}
	a, b := ends[0], ends[1]
	for i := range a.mem.Bytes() {
		a.mem.Bytes()[i] = byte(i*7 + i>>8)
	}
	connect(t, a, b, verbs.MTU256, change...)
	net0 := newTap(t, "net0")
	run(net0, a, b)
	packets := net0.take()
	if len(packets) == 0 {
		t.Fatalf("no packet was seen on net0, want those of a %v QP", typ)
	}
	return packets
}

// check checks internal/roce against a kernel packet.
func check(t *testing.T, p packet, e *roce.Explainer) {
	t.Helper()
	var h roce.Header
	payload, reason := h.Decode(p.datagram)
	if reason != roce.OK {
		t.Fatalf("Decode = %v, want ok: %x", reason, p.bytes)
	}
	flow, err := roce.NewFlow(p.src, p.dst)
	enginetest.Must(t, err)
	if got, want := flow.ICRC(p.datagram, p.id), roce.Received(p.datagram); got != want {
		t.Fatalf("ICRC = %#x, want the kernel's %#x: %x", got, want, p.bytes)
	}
	if id, ok := flow.Check(p.datagram, e); !ok || id != p.id {
		t.Fatalf("Check = %d, %v, want %d, true: %x", id, ok, p.id, p.bytes)
	}
	again := make([]byte, len(p.datagram))
	n := h.Encode(again, len(payload))
	copy(again[n:], payload)
	flow.Seal(again, p.id)
	if !bytes.Equal(again, p.datagram) {
		t.Fatalf("encoded again:\n%x, want\n%x", again, p.datagram)
	}
}

// messages posts the SENDs and WRITEs of RC and UC: with one packet and several, with and without an
// immediate, and with lengths that need padding.
func messages(a, b *end) {
	for _, n := range []int{700, 256, 5, 0} {
		for _, op := range []verbs.Opcode{verbs.OpSend, verbs.OpSendWithImm, verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm} {
			received := 0
			if op != verbs.OpRDMAWrite {
				b.recv(memory / 2)
				received = 1
			}
			a.send(verbs.SendWR{Opcode: op, Imm: 0x01020304, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}, n, n)
			a.wait(1, verbs.StatusSuccess)
			b.wait(received, verbs.StatusSuccess)
		}
	}
}

func reliable(_ *tap, a, b *end) {
	messages(a, b)
	for _, n := range []int{700, 256, 6} {
		a.send(verbs.SendWR{Opcode: verbs.OpRDMARead, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}, 0, n)
		a.wait(1, verbs.StatusSuccess)
	}
	for _, op := range []verbs.Opcode{verbs.OpAtomicCmpAndSwp, verbs.OpAtomicFetchAndAdd} {
		a.send(verbs.SendWR{Opcode: op, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey(), CompareAdd: 0x0102030405060708, Swap: 0x1112131415161718}, 0, 8)
		a.wait(1, verbs.StatusSuccess)
	}
}

// notReady provokes an RNR NAK: it posts the receive only after the NAK was captured.
func notReady(net0 *tap, a, b *end) {
	a.send(verbs.SendWR{Opcode: verbs.OpSend}, 0, 9)
	for deadline := time.Now().Add(patience); !slices.ContainsFunc(net0.take(), isNotReady); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			a.t.Fatalf("no RNR NAK after %v, want one", patience)
		}
	}
	b.recv(memory / 2)
	a.wait(1, verbs.StatusSuccess)
}

func isNotReady(p packet) bool { return p.datagram[0] == roce.OpAck && p.datagram[12]&0x60 == 0x20 }

// badKey provokes a NAK for an invalid key.
func badKey(_ *tap, a, b *end) {
	a.send(verbs.SendWR{Opcode: verbs.OpRDMAWrite, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey() ^ 0x5a5a00}, 0, 9)
	a.wait(1, verbs.StatusRemAccessErr)
}

func unreliable(_ *tap, a, b *end) { messages(a, b) }

func datagrams(_ *tap, a, b *end) {
	ah, err := a.pd.CreateAH(verbs.AHAttr{DGID: b.row.GID, SGIDIndex: a.row.Index, Port: 1})
	enginetest.Must(a.t, err)
	a.t.Cleanup(func() { enginetest.Must(a.t, ah.Close()) })
	for _, op := range []verbs.Opcode{verbs.OpSend, verbs.OpSendWithImm} {
		b.recv(memory / 2)
		a.send(verbs.SendWR{Opcode: op, Imm: 0x01020304, AH: ah.Handle(), RemoteQPN: b.at.QPN, RemoteQKey: b.at.QKey}, 0, 97)
		a.wait(1, verbs.StatusSuccess)
		b.wait(1, verbs.StatusSuccess)
	}
}
