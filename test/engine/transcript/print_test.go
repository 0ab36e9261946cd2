package transcript_test

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"strings"

	"ibverbx"
	"ibverbx/verbs"
)

// describeLanes says which lanes there are, by rail.
func (x *actor) describeLanes(rails int) (answers []string) {
	for rail := range rails {
		var parts []string
		for _, role := range []string{"data", "message", "notify"} {
			var nums []string
			for i := range x.lanes {
				if x.rail[i] == rail && x.roles[i] == role {
					nums = append(nums, fmt.Sprint(i))
				}
			}
			if len(nums) > 0 {
				parts = append(parts, role+" "+strings.Join(nums, " "))
			}
		}
		answers = append(answers, fmt.Sprintf("%srail %d: %s", x.prefix(), rail, strings.Join(parts, ", ")))
	}
	return answers
}

func (x *actor) prefix() string {
	if x.name == "" {
		return ""
	}
	return x.name + " "
}

func (x *actor) laneName(i int) string { return fmt.Sprintf("%slane %d", x.prefix(), i) }

// news tells what the lanes took since the last time, one line for each request; those
// that one doorbell announced with another begin with "+". Then whether the VirtualQP
// failed.
func (x *actor) news() (answers []string) {
	for i, l := range x.lanes {
		at := 0
		for bell, n := range l.Chains() {
			for k := range n {
				if bell < x.rung[i] {
					continue
				}
				name := x.laneName(i) + ":"
				if k > 0 {
					name = strings.Repeat(" ", len(name)-1) + "+"
				}
				answers = append(answers, name+" "+x.describe(i, at+k))
			}
			at += n
		}
		x.rung[i] = len(l.Chains())
	}
	if err := x.qp.Err(); err != nil && !x.failed {
		x.failed = true
		answers = append(answers, x.prefix()+"failed: "+withoutCause(err))
	}
	return answers
}

// withoutCause is the text of an error without the usual cause of its status, which says
// nothing about the transcript.
func withoutCause(err error) string {
	text := err.Error()
	for _, s := range transcriptStatus {
		if cause := s.Cause(); cause != "" {
			text = strings.TrimSuffix(text, ": "+cause)
		}
	}
	return text
}

// describe puts a physical request into words: what it is in its scheme, where it goes and
// how long it is, and whether it asks for a completion.
func (x *actor) describe(lane, at int) string {
	wr, inline := x.lanes[lane].Request(at), x.lanes[lane].Inline(at)
	var b strings.Builder
	switch role := x.roles[lane]; {
	case role == "data" && wr.Opcode == verbs.OpSend && len(inline) == 16:
		fmt.Fprintf(&b, "record msg=%d lanes=%d imm=%d len=%d", binary.LittleEndian.Uint32(inline), binary.LittleEndian.Uint32(inline[4:]),
			binary.LittleEndian.Uint32(inline[8:]), binary.LittleEndian.Uint32(inline[12:]))
	case wr.Opcode == verbs.OpSend && wr.NumSGE == 0 && role != "message":
		b.WriteString("marker")
	case role == "notify":
		fmt.Fprintf(&b, "notify imm=%d", wr.Imm)
	case role == "data" && x.scheme == ibverbx.DQPLB && wr.Opcode == verbs.OpRDMAWriteWithImm && len(x.lanes) > 1:
		b.WriteString("writeimm" + x.span(wr, inline))
		imm := bits.ReverseBytes32(wr.Imm) // DQPLB's number lies in memory lowest byte first
		fmt.Fprintf(&b, " seq=%d", imm&^(1<<31))
		if imm>>31 != 0 {
			b.WriteString(" last")
		}
	default:
		b.WriteString(opName(wr.Opcode) + x.span(wr, inline))
		switch wr.Opcode {
		case verbs.OpRDMAWriteWithImm, verbs.OpSendWithImm:
			fmt.Fprintf(&b, " imm=%d", wr.Imm)
		case verbs.OpAtomicFetchAndAdd:
			fmt.Fprintf(&b, " add=%d", wr.CompareAdd)
		case verbs.OpAtomicCmpAndSwp:
			fmt.Fprintf(&b, " compare=%d swap=%d", wr.CompareAdd, wr.Swap)
		default:
		}
	}
	for i, word := range []string{" fence", " signaled", " solicited"} {
		if wr.Flags&(1<<i) != 0 {
			b.WriteString(word)
		}
	}
	return b.String()
}

// span says which bytes a physical request moves: off is the place at the peer, from the
// local one where it is not the same.
func (x *actor) span(wr *verbs.SendWR, inline []byte) string {
	named := wr.Opcode != verbs.OpSend && wr.Opcode != verbs.OpSendWithImm && wr.Length() > 0
	s := ""
	if named {
		s = fmt.Sprintf(" off=%d", wr.RemoteAddr-x.base)
	}
	s += fmt.Sprintf(" len=%d", wr.Length())
	if inline != nil {
		return s + fmt.Sprintf(" inline=%x", inline)
	}
	var from []string
	for _, e := range wr.SGE[:wr.NumSGE] {
		from = append(from, fmt.Sprintf("%d+%d", e.Addr-x.base, e.Length))
	}
	if len(from) == 1 && named && wr.SGE[0].Addr == wr.RemoteAddr || len(from) == 0 {
		return s
	}
	return s + " from=" + strings.Join(from, ",")
}

// completion puts a completion into words: only what is valid in it.
func (st *stage) completion(wc *ibverbx.WC) string {
	name := "?"
	for _, x := range st.actors {
		if x.qp == wc.QP {
			name = x.prefix()
		}
	}
	s := fmt.Sprintf("wc %sid=%d %s", name, wc.WRID, statusName(wc.Status))
	if wc.Status != verbs.StatusSuccess {
		return s
	}
	kinds := map[verbs.WCOpcode]string{
		verbs.WCSend: "send", verbs.WCRDMAWrite: "write", verbs.WCRDMARead: "read", verbs.WCCompSwap: "swap",
		verbs.WCFetchAdd: "add", verbs.WCRecv: "recv", verbs.WCRecvRDMAWithImm: "notified",
	}
	s += " " + kinds[wc.Opcode]
	if wc.Flags&ibverbx.WCHasLength != 0 {
		s += fmt.Sprintf(" len=%d", wc.ByteLen)
	}
	if wc.Flags&ibverbx.WCHasImm != 0 {
		s += fmt.Sprintf(" imm=%d", wc.Imm)
	}
	return s
}
