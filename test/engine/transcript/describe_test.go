package transcript_test

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"strings"

	"ibverbx"
	"ibverbx/verbs"
)

// describeLanes lists the lanes by rail.
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

// newRequests lists the requests that the lanes accepted since the last call, one line each. Requests that share a
// doorbell with the previous one begin with "+". A failure of the VirtualQP follows.
func (x *actor) newRequests() (answers []string) {
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

// withoutCause returns the text of an error without the usual cause of its status, which is irrelevant to the
// transcript.
func withoutCause(err error) string {
	text := err.Error()
	for _, s := range transcriptStatus {
		if cause := s.Cause(); cause != "" {
			text = strings.TrimSuffix(text, ": "+cause)
		}
	}
	return text
}

// describe formats a physical request: its role in the scheme, target, length, and whether it is signaled.
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

// span formats the bytes that a physical request moves: off is the remote offset, from the local one if it
// differs.
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

// completion formats the valid fields of a completion.
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
