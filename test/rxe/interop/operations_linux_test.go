package interop_test

import (
	"slices"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/verbs"
)

// operation is a row of the table: a requester's operation and its test.
type operation struct {
	name string
	run  func(t *testing.T, w *world, family, asker int)
}

// rc tests one operation of RC.
func rc(op verbs.Opcode) func(t *testing.T, w *world, family, asker int) {
	return func(t *testing.T, w *world, family, asker int) {
		newTalk(t, w, family, asker, verbs.RC, verbs.MTU1024).every(op)
	}
}

// uc tests operations of UC.
func uc(ops ...verbs.Opcode) func(t *testing.T, w *world, family, asker int) {
	return func(t *testing.T, w *world, family, asker int) {
		c := newTalk(t, w, family, asker, verbs.UC, verbs.MTU1024)
		for _, op := range ops {
			c.every(op)
		}
	}
}

// packets tests messages of many packets with an MTU.
func packets(mtu verbs.MTU) func(t *testing.T, w *world, family, asker int) {
	return func(t *testing.T, w *world, family, asker int) {
		c := newTalk(t, w, family, asker, verbs.RC, mtu)
		for _, op := range []verbs.Opcode{verbs.OpSendWithImm, verbs.OpRDMAWriteWithImm, verbs.OpRDMARead} {
			c.every(op)
			c.ask(op, 128<<10+1)
		}
		c.settle()
	}
}

// bad runs all RC operations on a wire impaired in both directions by tc-netem(8). Timeouts are short,
// because some losses need one.
func bad(netem ...string) func(t *testing.T, w *world, family, asker int) {
	return func(t *testing.T, w *world, family, asker int) {
		c := newTalk(t, w, family, asker, verbs.RC, verbs.MTU1024, func(a *verbs.QPAttr) { a.Timeout = 15 })
		c.mix(1) // both sides resolve the other's address
		w.impair(t, 0, netem...)
		c.mix(150)
	}
}

var operations = []operation{
	{"RC SEND", rc(verbs.OpSend)},
	{"RC SEND_WITH_IMM", rc(verbs.OpSendWithImm)},
	{"RC WRITE", rc(verbs.OpRDMAWrite)},
	{"RC WRITE_WITH_IMM", rc(verbs.OpRDMAWriteWithImm)},
	{"RC READ", rc(verbs.OpRDMARead)},
	{"RC FETCH_ADD", rc(verbs.OpAtomicFetchAndAdd)},
	{"RC CMP_SWAP", rc(verbs.OpAtomicCmpAndSwp)},
	{"RC, many packets, MTU 256", packets(verbs.MTU256)},
	{"RC, many packets, MTU 512", packets(verbs.MTU512)},
	{"RC, many packets, MTU 1024", packets(verbs.MTU1024)},
	{"RC, many packets, MTU 2048", packets(verbs.MTU2048)},
	{"RC, many packets, MTU 4096", packets(verbs.MTU4096)},
	{"RC, all kinds at once", func(t *testing.T, w *world, family, asker int) {
		newTalk(t, w, family, asker, verbs.RC, verbs.MTU4096).mix(300)
	}},
	{"RC, receiver not ready", notReadyYet},
	{"RC, receiver never ready", neverReady},
	{"RC, wrong key", wrongKey},
	{"RC, 2% loss", bad("loss", "2%")},
	{"RC, 10% duplicated", bad("duplicate", "10%")},
	{"RC, 10% reordered", bad("delay", "1ms", "reorder", "90%")},
	{"RC, 2% corrupted", bad("corrupt", "2%")},
	{"RC, peer unreachable", peerGone},
	{"UC SEND", uc(verbs.OpSend)},
	{"UC SEND_WITH_IMM", uc(verbs.OpSendWithImm)},
	{"UC WRITE", uc(verbs.OpRDMAWrite)},
	{"UC WRITE_WITH_IMM", uc(verbs.OpRDMAWriteWithImm)},
	{"UD SEND", ud(verbs.OpSend)},
	{"UD SEND_WITH_IMM", ud(verbs.OpSendWithImm)},
	{"VirtualQP, Tally", virtual(ibverbx.Tally)},
	{"VirtualQP, DQPLB", virtual(ibverbx.DQPLB)},
	{"VirtualQP, Spray", virtual(ibverbx.Spray)},
	{"VirtualQP, Tally, lanes lost", loseLanes(ibverbx.Tally)},
	{"VirtualQP, DQPLB, lanes lost", loseLanes(ibverbx.DQPLB)},
	{"VirtualQP, Spray, lanes lost", loseLanes(ibverbx.Spray)},
	{"VirtualQP, a rail cut", cutRail},
}

// notReadyYet: receives are posted after the first RNR NAK, and the waiting requests complete.
func notReadyYet(t *testing.T, w *world, family, asker int) {
	c := newTalk(t, w, family, asker, verbs.RC, verbs.MTU1024)
	net0 := newTap(t, w.wires[0].kern)
	for i, n := range []int{100, 5000} {
		c.a.send(verbs.SendWR{Opcode: verbs.OpSend}, 0, n)
		c.a.send(verbs.SendWR{Opcode: verbs.OpRDMAWriteWithImm, Imm: 7, RemoteAddr: c.b.mr.Addr() + 10_000, RKey: c.b.mr.RKey()}, 0, n)
		c.posted = []asked{{verbs.OpSend, [2]int{0, 20_000 * (i + 1)}, n}, {verbs.OpRDMAWriteWithImm, [2]int{0, 10_000}, n}}
		for range 2 { // each receive is posted after a NAK
			net0.packets = nil
			for deadline := time.Now().Add(patience); !slices.ContainsFunc(net0.take(), isNotReady); time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("no RNR NAK for a request of %d bytes after %v, want one", n, patience)
				}
			}
			if len(c.delivered) == 0 {
				c.hear(verbs.OpSend, 20_000*(i+1), n, 0)
			} else {
				c.hear(verbs.OpRDMAWriteWithImm, 0, n, 7)
			}
		}
		copy(c.want[1][10_000:], c.want[0][:n])
		copy(c.want[1][20_000*(i+1):], c.want[0][:n])
		c.settle()
	}
}

// neverReady: a request fails after too many RNR NAKs.
func neverReady(t *testing.T, w *world, family, asker int) {
	c := newTalk(t, w, family, asker, verbs.RC, verbs.MTU1024, func(a *verbs.QPAttr) { a.RNRRetry = 2 })
	c.a.send(verbs.SendWR{Opcode: verbs.OpSend}, 0, 3000)
	c.a.wait(1, verbs.StatusRNRRetryExcErr)
}

// wrongKey: requests that the responder rejects fail.
func wrongKey(t *testing.T, w *world, family, asker int) {
	for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMARead, verbs.OpAtomicFetchAndAdd} {
		c := newTalk(t, w, family, asker, verbs.RC, verbs.MTU1024)
		c.mix(2)
		c.a.send(verbs.SendWR{Opcode: op, RemoteAddr: c.b.mr.Addr(), RKey: c.b.mr.RKey() ^ 0x5a5a00}, 0, 8)
		c.a.wait(1, verbs.StatusRemAccessErr)
		c.settle()
	}
}

// peerGone: a request fails when responses stop.
func peerGone(t *testing.T, w *world, family, asker int) {
	c := newTalk(t, w, family, asker, verbs.RC, verbs.MTU1024, func(a *verbs.QPAttr) { a.Timeout, a.RetryCount = 12, 2 })
	c.mix(1)
	w.impair(t, 0, "loss", "100%")
	c.a.send(verbs.SendWR{Opcode: verbs.OpRDMAWrite, RemoteAddr: c.b.mr.Addr(), RKey: c.b.mr.RKey()}, 0, 3000)
	c.a.wait(1, verbs.StatusRetryExcErr)
	c.settle()
}

// ud sends datagrams and checks that the receiver gets their source.
func ud(op verbs.Opcode) func(t *testing.T, w *world, family, asker int) {
	return func(t *testing.T, w *world, family, asker int) {
		c := newTalk(t, w, family, asker, verbs.UD, verbs.MTU1024)
		ah, err := c.a.pd.CreateAH(verbs.AHAttr{DGID: c.b.row.GID, SGIDIndex: c.a.row.Index, HopLimit: 64, Port: 1, DLID: c.b.at.LID})
		enginetest.Must(t, err)
		t.Cleanup(func() { enginetest.Must(t, ah.Close()) })
		for _, n := range []int{0, 1, 2, 3, 97, 1024, 4096} {
			c.b.recv(n + verbs.GRHLen)
			c.a.send(verbs.SendWR{Opcode: op, Imm: 0x01020304, AH: ah.Handle(), RemoteQPN: c.b.at.QPN, RemoteQKey: c.b.at.QKey}, n, n)
			c.a.wait(1, verbs.StatusSuccess)
			wc := c.b.wait(1, verbs.StatusSuccess)[0]
			if wc.ByteLen != uint32(n+verbs.GRHLen) || wc.SrcQPN != c.a.at.QPN {
				t.Fatalf("a datagram of %d bytes from QP %#x, want %d from %#x", wc.ByteLen, wc.SrcQPN, n+verbs.GRHLen, c.a.at.QPN)
			}
			if imm := wc.Flags&verbs.WCWithImm != 0; imm != (op == verbs.OpSendWithImm) || imm && wc.Imm != 0x01020304 {
				t.Fatalf("an immediate: %v, %#x, want %v, 0x1020304", imm, wc.Imm, op == verbs.OpSendWithImm)
			}
			head := c.b.mem.Bytes()[memory/2:][:verbs.GRHLen]
			grh, err := verbs.ParseGRH(head)
			if err != nil || grh.SGID != c.a.row.GID || grh.DGID != c.b.row.GID {
				t.Fatalf("the datagram says %+v, %v, want from %s to %s: %x", grh, err, c.a.row.GID, c.b.row.GID, head)
			}
			copy(c.want[1][memory/2:], head)
			copy(c.want[1][memory/2+verbs.GRHLen:], c.want[0][n:2*n])
			c.settle()
		}
	}
}
