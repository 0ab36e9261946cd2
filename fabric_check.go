package ibverbx

import (
	"fmt"
	"math"
	"slices"

	"ibverbx/verbs"
)

// leadingPlain returns the number of valid, plain requests at the front of wrs: WRITEs and READs of contiguous memory
// without special flags. check handles all others.
func (u *setup) leadingPlain(wrs []SendWR) int {
	return u.plainPrefix(wrs, plainOps, plainFlags, math.MaxUint32)
}

// plainPrefix returns the number of plain requests at the front of wrs with these opcodes, no other flags, and at
// most most bytes. Every short request passes it, so it is one loop without calls. The atomic load is a separate
// condition and the shift is bounded: otherwise a request takes 13 more instructions than 215 (BenchmarkMessage, one
// lane).
func (u *setup) plainPrefix(wrs []SendWR, ops uint32, flags verbs.SendFlags, most uint32) int {
	rails, remoteRails, others := u.rails, u.remoteRails, ^flags
	var known *RemoteRegion // has a key for every rail
	for i := range wrs {
		wr := &wrs[i]
		if wr.Opcode > 31 || ops&(1<<(wr.Opcode&31)) == 0 {
			return i
		}
		e, m := &wr.SGE[0], wr.Remote
		r := e.Region
		if r == nil || m == nil || wr.NumSGE != 1 {
			return i
		}
		if r.complete.Load() != rails {
			return i
		}
		if m != known {
			if len(m.RKeys) < remoteRails {
				return i
			}
			for _, key := range m.RKeys[:remoteRails] {
				if key == 0 {
					return i
				}
			}
			known = m
		}
		length := uint64(e.Length)
		if wr.Flags&others != 0 || length == 0 || e.Length > most ||
			e.Offset > r.length || length > r.length-e.Offset || wr.RemoteOffset > m.Length || length > m.Length-wr.RemoteOffset {
			return i
		}
	}
	return len(wrs)
}

const (
	plainOps   = uint32(1<<verbs.OpRDMAWrite | 1<<verbs.OpRDMAWriteWithImm | 1<<verbs.OpRDMARead)
	plainFlags = verbs.SendSignaled | verbs.SendSolicited | verbs.SendFence
)

// check returns the length of a request and whether it lacks a key for some rail, or an error that names the invalid
// field.
func (u *setup) check(wr *SendWR) (length uint64, partial bool, err error) {
	if wr.NumSGE > u.maxSGE {
		return 0, false, verbs.Invalidf("%d SGEs, the devices allow %d", wr.NumSGE, u.maxSGE)
	}
	if !wr.Flags.Valid() {
		return 0, false, verbs.Invalidf("unknown flags %s", wr.Flags)
	}
	if wr.Opcode > verbs.OpAtomicFetchAndAdd {
		return 0, false, verbs.Invalidf("unknown opcode %s", wr.Opcode)
	}
	inline := wr.Flags&verbs.SendInline != 0
	for i := range wr.NumSGE {
		e := &wr.SGE[i]
		length += uint64(e.Length)
		if err := u.rails.checkLocal(e); err != nil {
			return 0, false, fmt.Errorf("SGE %d: %w", i, err)
		}
		partial = partial || e.Length > 0 && !inline && e.Region.complete.Load() == nil
		if inline && e.Region.memory == nil {
			return 0, false, verbs.Invalidf("SGE %d: INLINE bytes are copied by the CPU, which cannot access the dma-buf or the device of the region", i)
		}
	}
	atomic, message := isAtomic(wr.Opcode), isMessage(wr.Opcode)
	switch {
	case atomic && length != 8:
		return 0, false, verbs.Invalidf("%s needs a local buffer of 8 bytes, not %d", wr.Opcode, length)
	case message && u.cfg.CxxPeer && !u.direct:
		return 0, false, verbs.Invalidf("%s on several lanes: a C++ peer has no lane for messages", wr.Opcode)
	case (message || u.direct) && length > uint64(u.maxMsg):
		return 0, false, verbs.Invalidf("%s of %d bytes must fit one lane, which takes %d", wr.Opcode, length, u.maxMsg)
	case length > math.MaxUint32:
		return 0, false, verbs.Invalidf("%d bytes, at most %d fit one request", length, uint32(math.MaxUint32))
	case inline && (atomic || wr.Opcode == verbs.OpRDMARead):
		return 0, false, verbs.Invalidf("INLINE is not legal on %s", wr.Opcode)
	case inline && length > uint64(u.cfg.MaxInline):
		return 0, false, verbs.Invalidf("%d inline bytes, the lanes take %d (Config.MaxInline)", length, u.cfg.MaxInline)
	}
	if message || length == 0 {
		return length, partial, nil // no peer memory is accessed (IBTA C9-88)
	}
	if err := u.checkRemote(wr, length); err != nil {
		return 0, false, err
	}
	return length, partial || slices.Contains(wr.Remote.RKeys[:u.remoteRails], 0), nil
}

// checkLocal returns an error that names the invalid part of an element.
func (r *Rails) checkLocal(e *SGE) error {
	switch {
	case e.Region == nil:
		return verbs.Invalidf("no region")
	case e.Region.rails == nil:
		return fmt.Errorf("%w: the region was closed before the post", verbs.ErrClosed)
	case e.Region.rails != r:
		return verbs.Invalidf("the region is registered on other rails")
	case e.Offset > e.Region.length || uint64(e.Length) > e.Region.length-e.Offset:
		return verbs.Invalidf("%d bytes at %d of a region of %d", e.Length, e.Offset, e.Region.length)
	}
	return nil
}

// checkRemote returns an error that names the invalid part of a request's remote memory.
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

// checkRecv returns the length of a receive, or an error that names the invalid field.
func (u *setup) checkRecv(wr *RecvWR) (length uint64, err error) {
	switch length, err = u.rails.checkRecv(wr, u.maxSGE); {
	case err != nil:
		return 0, err
	case u.pool != nil && (length > 0 || u.direct):
		return 0, verbs.Invalidf("a receive of %d bytes belongs in the pool of the virtual CQ (CQConfig.SharedData): use VirtualCQ.PostRecv", length)
	case length > 0 && u.cfg.CxxPeer && !u.direct:
		return 0, verbs.Invalidf("a receive of %d bytes: a C++ peer does not send messages on several lanes", length)
	}
	return length, nil
}

// checkRecv returns the length of a receive of at most maxSGE elements, or an error that names the invalid field.
func (r *Rails) checkRecv(wr *RecvWR, maxSGE uint8) (length uint64, err error) {
	if wr.NumSGE > maxSGE {
		return 0, verbs.Invalidf("%d SGEs, the devices allow %d", wr.NumSGE, maxSGE)
	}
	for i := range wr.NumSGE {
		if err := r.checkLocal(&wr.SGE[i]); err != nil {
			return 0, fmt.Errorf("SGE %d: %w", i, err)
		}
		length += uint64(wr.SGE[i].Length)
	}
	return length, nil
}
