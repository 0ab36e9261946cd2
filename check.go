package ibverbx

import (
	"fmt"
	"math"

	"ibverbx/verbs"
)

// check returns the length of a request, or an error that says what is wrong with it.
func (u *setup) check(wr *SendWR) (length uint64, err error) {
	if wr.NumSGE > MaxSGE {
		return 0, verbs.Invalidf("%d SGEs, at most %d are allowed", wr.NumSGE, MaxSGE)
	}
	if !wr.Flags.Valid() {
		return 0, verbs.Invalidf("unknown flags %s", wr.Flags)
	}
	if wr.Opcode > verbs.OpAtomicFetchAndAdd {
		return 0, verbs.Invalidf("unknown opcode %s", wr.Opcode)
	}
	inline := wr.Flags&verbs.SendInline != 0
	for i := range wr.NumSGE {
		e := &wr.SGE[i]
		length += uint64(e.Length)
		if err := u.checkLocal(e); err != nil {
			return 0, fmt.Errorf("SGE %d: %w", i, err)
		}
	}
	atomic, message := isAtomic(wr.Opcode), isMessage(wr.Opcode)
	switch {
	case length == 0 && (wr.Opcode == verbs.OpRDMAWrite || wr.Opcode == verbs.OpRDMARead):
		return 0, verbs.Invalidf("%s of no bytes", wr.Opcode)
	case atomic && length != 8:
		return 0, verbs.Invalidf("%s needs a local buffer of 8 bytes, not %d", wr.Opcode, length)
	case message && u.cfg.CxxPeer && !u.direct:
		return 0, verbs.Invalidf("%s on several lanes: a C++ peer has no lane for messages", wr.Opcode)
	case message && length > uint64(u.maxMsg):
		return 0, verbs.Invalidf("%s of %d bytes must fit one lane, which takes %d", wr.Opcode, length, u.maxMsg)
	case length > math.MaxUint32:
		return 0, verbs.Invalidf("%d bytes, at most %d fit one request", length, uint32(math.MaxUint32))
	case inline && (atomic || wr.Opcode == verbs.OpRDMARead):
		return 0, verbs.Invalidf("INLINE is not legal on %s", wr.Opcode)
	case inline && length > uint64(u.cfg.MaxInline):
		return 0, verbs.Invalidf("%d inline bytes, Config.MaxInline is %d", length, u.cfg.MaxInline)
	}
	if message || (length == 0 && wr.Opcode == verbs.OpRDMAWriteWithImm) {
		return length, nil // it names no memory of the peer
	}
	return length, u.checkRemote(wr, length)
}

func (u *setup) checkLocal(e *SGE) error {
	switch {
	case e.Region == nil:
		return verbs.Invalidf("no region")
	case e.Region.rails != u.rails:
		return verbs.Invalidf("the region is registered on other rails")
	case e.Offset > e.Region.length || uint64(e.Length) > e.Region.length-e.Offset:
		return verbs.Invalidf("%d bytes at %d of a region of %d", e.Length, e.Offset, e.Region.length)
	}
	return nil
}

func (u *setup) checkRemote(wr *SendWR, length uint64) error {
	m := wr.Remote
	switch {
	case m == nil:
		return verbs.Invalidf("no remote region")
	case wr.RemoteOffset > m.Length || length > m.Length-wr.RemoteOffset:
		return verbs.Invalidf("%d bytes at %d of a remote region of %d", length, wr.RemoteOffset, m.Length)
	case len(m.RKeys) < u.remoteRails:
		return verbs.Invalidf("the remote region has keys for %d rails, the lanes use %d", len(m.RKeys), u.remoteRails)
	}
	return nil
}

// checkRecv returns the length of a receive, or an error that says what is wrong with it.
func (u *setup) checkRecv(wr *RecvWR) (length uint64, err error) {
	if wr.NumSGE > MaxSGE {
		return 0, verbs.Invalidf("%d SGEs, at most %d are allowed", wr.NumSGE, MaxSGE)
	}
	for i := range wr.NumSGE {
		if err := u.checkLocal(&wr.SGE[i]); err != nil {
			return 0, fmt.Errorf("SGE %d: %w", i, err)
		}
		length += uint64(wr.SGE[i].Length)
	}
	if length > 0 && u.cfg.CxxPeer && !u.direct {
		return 0, verbs.Invalidf("a receive of %d bytes: a C++ peer does not send messages on several lanes", length)
	}
	return length, nil
}
