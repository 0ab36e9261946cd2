package transcript_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"strings"

	"ibverbx"
	"ibverbx/verbs"
)

// act runs the command in a line and returns its output.
func (st *stage) act(line string) (answers []string) {
	command, rest, _ := strings.Cut(line, " ")
	a := &args{st: st, words: strings.Fields(rest)}
	switch command {
	case "config":
		return st.build(a)
	case "qp":
		return st.join(a)
	case "post":
		answers = st.post(a, rest)
	case "poll":
		answers = st.poll(a)
	case "complete":
		st.complete(a)
	case "fail":
		st.fail(a)
	case "refuse":
		st.refuse(a)
	case "deliver":
		answers = st.deliver(a)
	case "receives":
		answers = st.receives(a)
	case "scribble":
		clear(st.memory.Bytes()[a.number("at", 0):][:a.number("len", 0)])
	default:
		a.fatalf("there is no command %q", command)
	}
	a.done()
	for _, x := range st.actors {
		answers = append(answers, x.newRequests()...)
	}
	if len(answers) == 0 && (command == "poll" || command == "post" && !strings.HasPrefix(rest, "recv")) {
		answers = []string{"nothing"}
	}
	return answers
}

// post posts a chain of requests separated by "|". Receives are posted individually.
func (st *stage) post(a *args, line string) []string {
	x := st.actor(a)
	a.words = nil
	var sends []ibverbx.SendWR
	var recvs []ibverbx.RecvWR
	for part := range strings.SplitSeq(line, "|") {
		b := &args{st: st, words: strings.Fields(part)}
		b.text("qp", "")
		if op := b.word(); op == "recv" {
			recvs = append(recvs, st.receive(b)...)
		} else if opcode, ok := transcriptOp[op]; ok {
			sends = append(sends, st.request(b, opcode)...)
		} else {
			a.fatalf("there is no request %q", op)
		}
		b.done()
	}
	if len(sends) > 0 && len(recvs) > 0 {
		a.fatalf("sends and receives are not one chain")
	}
	n, total, err := 0, len(sends)+len(recvs), error(nil)
	if len(recvs) > 0 {
		n, err = x.qp.PostRecv(recvs)
	} else {
		n, err = x.qp.PostSend(sends)
	}
	if n < total || err != nil {
		return []string{fmt.Sprintf("refused at %d of %d: %s", n, total, errorClass(err))}
	}
	return nil
}

// errorClass returns the sentinel of an error, without the wording.
func errorClass(err error) string {
	for _, class := range []error{verbs.ErrQueueFull, verbs.ErrInvalid, verbs.ErrState, verbs.ErrClosed} {
		if errors.Is(err, class) {
			return class.Error()
		}
	}
	return fmt.Sprint(err)
}

// request returns the requests of one part of a post line, one for each ID of its span.
func (st *stage) request(a *args, op verbs.Opcode) (wrs []ibverbx.SendWR) {
	first, last := a.span("id")
	length, imm := a.number("len", 0), a.number("imm", 0)
	if op >= verbs.OpAtomicCmpAndSwp {
		length = 8
	}
	flags := verbs.SendSignaled
	if a.has("unsignaled") {
		flags = 0
	}
	for word, flag := range map[string]verbs.SendFlags{"fence": verbs.SendFence, "inline": verbs.SendInline, "solicited": verbs.SendSolicited} {
		if a.has(word) {
			flags |= flag
		}
	}
	at, pieces := a.number("at", -1), a.text("from", "")
	add, compare, swap := a.number("add", 0), a.number("compare", 0), a.number("swap", 0)
	for id := first; id <= last; id++ {
		off := at
		if off < 0 {
			off, st.nextOff = st.nextOff, st.nextOff+length
		}
		wr := ibverbx.SendWR{
			WRID: uint64(id), Opcode: op, Flags: flags, Imm: uint32(imm), Remote: st.region.Remote(), RemoteOffset: uint64(off),
			CompareAdd: uint64(add + compare), Swap: uint64(swap),
		}
		switch {
		case pieces != "":
			wr.SetSGE(st.pieces(a, pieces)...)
		case length > 0:
			wr.SetSGE(st.region.SGE(uint64(off), uint32(length)))
		}
		wrs = append(wrs, wr)
	}
	return wrs
}

// pieces parses "offset+length,offset+length".
func (st *stage) pieces(a *args, s string) (sges []ibverbx.SGE) {
	for piece := range strings.SplitSeq(s, ",") {
		off, n, _ := strings.Cut(piece, "+")
		sges = append(sges, st.region.SGE(uint64(a.parse("from", off)), uint32(a.parse("from", n))))
	}
	return sges
}

func (st *stage) receive(a *args) (wrs []ibverbx.RecvWR) {
	first, last := a.span("id")
	at, length := a.number("at", stageMemory/2), a.number("len", 0)
	for id := first; id <= last; id++ {
		wr := ibverbx.RecvWR{WRID: uint64(id)}
		if length > 0 {
			wr.SetSGE(st.region.SGE(uint64(at), uint32(length)))
			at += length
		}
		wrs = append(wrs, wr)
	}
	return wrs
}

func (st *stage) poll(a *args) (answers []string) {
	dst := make([]ibverbx.WC, a.number("n", 16))
	n, err := st.cq.Poll(dst)
	for i := range dst[:n] {
		answers = append(answers, st.completion(&dst[i]))
	}
	if err != nil {
		answers = append(answers, "error: "+err.Error())
	}
	return answers
}

// complete completes the oldest n requests of a lane, or all with n=all.
func (st *stage) complete(a *args) {
	l := st.actor(a).lane(a)
	count := a.text("n", "1")
	n := len(l.Posted())
	if count != "all" {
		n = a.parse("n", count)
	}
	if n > len(l.Posted()) {
		a.fatalf("the lane has %d requests, not %d", len(l.Posted()), n)
	}
	l.Complete(n)
}

// fail fails the oldest request of a lane, or its oldest receive, with a status.
func (st *stage) fail(a *args) {
	l := st.actor(a).lane(a)
	if a.has("recv") {
		l.FailRecv(a.status())
		return
	}
	if len(l.Posted()) == 0 {
		a.fatalf("the lane has no request that could fail")
	}
	l.Fail(a.status())
}

// refuse makes the NIC refuse a lane's next chain from a position on, because it is full or, with "broken",
// permanently.
func (st *stage) refuse(a *args) {
	l := st.actor(a).lane(a)
	err := verbs.ErrQueueFull
	if a.has("broken") {
		err = errors.New("the device says no")
	}
	l.RefuseAt(a.number("at", 0), err)
}

// deliver delivers a message from the peer: a Tally record, a DQPLB number, a Spray notification, or a SEND.
func (st *stage) deliver(a *args) []string {
	x := st.actor(a)
	kind := a.word()
	if kind == "send" && !strings.Contains(strings.Join(a.words, " "), "lane=") {
		a.words = append(a.words, "lane=message")
	}
	if kind == "notify" {
		a.words = append(a.words, "lane=notify")
	}
	l := x.lane(a)
	length, given := a.number("len", 0), a.number("imm", -1)
	imm := uint32(max(given, 0))
	wc := verbs.WC{Opcode: verbs.WCRecvRDMAWithImm, Flags: verbs.WCWithImm, Imm: imm, ByteLen: uint32(length)}
	var payload []byte
	switch kind {
	case "record":
		payload = binary.LittleEndian.AppendUint32(payload, uint32(a.number("msg", 0)))
		payload = binary.LittleEndian.AppendUint32(payload, uint32(a.number("lanes", 1)))
		payload = binary.LittleEndian.AppendUint32(payload, imm)
		payload = binary.LittleEndian.AppendUint32(payload, uint32(length))
		wc = verbs.WC{Opcode: verbs.WCRecv, ByteLen: uint32(len(payload))}
	case "number":
		wc.Imm = uint32(a.number("seq", 0))
		if a.has("last") {
			wc.Imm |= 1 << 31
		}
		wc.Imm = bits.ReverseBytes32(wc.Imm) // DQPLB's number lies in memory lowest byte first
	case "notify", "imm":
	case "send":
		payload = make([]byte, length)
		wc.Opcode = verbs.WCRecv
		if given < 0 {
			wc.Flags = 0
		}
	default:
		a.fatalf("the peer does not send %q", kind)
	}
	if !l.Deliver(wc, payload) {
		return []string{"receiver not ready"}
	}
	return nil
}

// receives reports the number of posted receives on each lane.
func (st *stage) receives(a *args) []string {
	x := st.actor(a)
	var parts []string
	for i, l := range x.lanes {
		parts = append(parts, fmt.Sprintf("%s %d", x.laneName(i), len(l.Waiting())))
	}
	return []string{"receives: " + strings.Join(parts, ", ")}
}
