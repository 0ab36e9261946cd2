package ibverbx

import (
	"fmt"
	"math"

	"ibverbx/verbs"
)

// setup holds the parameters shared by the components of a VirtualQP. It is read-only after Connect, except
// remoteGIDs.
type setup struct {
	// owner identifies the VirtualQP in completions and events. Components do not call its methods.
	owner *VirtualQP
	num   uint32 // unique within the VirtualCQ
	// incarnation identifies this VirtualQP in its card and in control messages. It is never 0.
	incarnation uint64
	peer        uint64 // incarnation of the peer; 0 before Connect
	// cfg includes the defaults.
	cfg    Config
	rails  *Rails          // cq's rails
	cq     *VirtualCQ      // receives the completions of all lanes
	shared *sharedReceives // shared engine receives; nil if every lane has its own
	pool   *dataPool       // shared data receives; nil if the VirtualQP has its own
	scheme notifier        // nil if direct
	direct bool            // one lane without failover: a passthrough

	// all holds the lanes by index: data lanes first, then the message lane and the notify lane.
	all   []*lane
	lanes []*lane // data lanes, the first ones of all
	// messageLane carries SENDs and atomics; nil if direct.
	messageLane *lane
	// notifyLane carries the notifications of Spray; nil with other schemes.
	notifyLane *lane

	// remoteRails is the number of the peer's rails, and of keys per remote region; 0 before Connect.
	remoteRails int
	// remoteRecvs is the number of messages that the peer accepts without a user receive.
	remoteRecvs int
	// remoteGIDs holds the addresses of the lanes in the peer's card, and later others that Config.CheckGID has accepted
	// (failover.allowsGID, connectOffered). Rebuilt lanes must use one of them.
	remoteGIDs []verbs.GID
	// addresses and remoteAddresses are Card.Addresses of the two sides; empty if a card omits them.
	addresses, remoteAddresses []verbs.GID
	// maxMsg is the largest fragment that every lane and the peer accept, in bytes.
	maxMsg uint32
	mtu    uint32 // minimum over the rails, in bytes
	// minCut is the smallest fragment worth its doorbell, in bytes.
	minCut   uint32
	maxWhole uint32 // maximum length of an unfragmented request in bytes; 0 before Connect
	maxSGE   uint8  // maximum number of SGEs on every device
	// keepsWhole is set if requests on device memory are not fragmented: on every rail the device copies them, and
	// each fragment would wait for it (verbs.PortAttr.DeviceCopies). Config.FragmentSize is 0.
	keepsWhole bool
}

// cachedClock holds the time until the next tick, so that a call reads the clock only a few times.
type cachedClock struct {
	now  int64        // in nanoseconds; valid while runs is set
	read func() int64 // Config.Now
	runs bool         // a policy or failover needs the time
	// failover is set if failover needs the time.
	failover bool
}

// run sets whether the policy needs the time.
func (c *cachedClock) run(on bool) { c.runs = on || c.failover }

// tick reads the clock if it runs.
func (c *cachedClock) tick() {
	if c.runs {
		c.now = c.read()
	}
}

// queueReport includes the VirtualQP in the next report.
func (u *setup) queueReport() { u.cq.queueReport(u.owner) }

func (u *setup) opError(op string, err error) error {
	return verbs.NewOpError(op, fmt.Sprintf("virtual QP %d", u.num), 0, err)
}

// recvSource is the origin of a lane's receives.
type recvSource uint8

const (
	ownReceives    recvSource = iota // the lane's own queue
	engineReceives                   // setup.shared
	dataReceives                     // setup.pool
)

// srqOf returns the origin of the receives of lanes with a role.
func (u *setup) srqOf(r role) recvSource {
	switch {
	case u.pool != nil && (u.direct || r == roleMessage):
		return dataReceives
	case u.shared != nil && r != roleMessage:
		return engineReceives
	}
	return ownReceives
}

// receives returns the number of engine receives that can be filled between two polls.
func (u *setup) receives() int {
	if u.shared != nil {
		return u.shared.depth * u.rails.Len()
	}
	return (u.cfg.Lanes + 1) * u.cfg.NotifyDepth
}

// fragmentSize returns the fragment size of a request in bytes: Config.FragmentSize or, if that is 0, an equal share
// per lane in whole MTUs. The bounds are the smallest fragment worth its doorbell and the largest accepted by every
// NIC. NICs that work on the caller's core carry fragments sequentially, so they gain little from many.
func (u *setup) fragmentSize(wr *SendWR, length uint32) uint32 {
	switch {
	case u.cfg.FragmentSize != 0:
		return min(u.cfg.FragmentSize, u.maxMsg)
	case length <= u.minCut:
		return min(max(length, 1), u.maxMsg)
	case u.keepsWhole && wr.usesDevice():
		return min(length, u.maxMsg)
	}
	part := (uint64(length)-1)/uint64(len(u.lanes)) + 1
	part = (part + uint64(u.mtu) - 1) / uint64(u.mtu) * uint64(u.mtu)
	return uint32(min(max(part, uint64(u.minCut)), wantFragment, uint64(u.maxMsg)))
}

// plan returns the lanes of a VirtualQP: data lanes spread over the rails, then the message lane and, with Spray, the
// notify lane. torchcomms assigns QPs to rails in blocks, and has one more QP for notifications and atomics.
func (u *setup) plan() (lanes []laneConfig) {
	n, rails := u.cfg.Lanes, u.rails.Len()
	for i := range n {
		lc := laneConfig{index: i, rail: i % rails, recvs: u.cfg.NotifyDepth}
		if u.cfg.CxxPeer {
			lc.rail = i * rails / n
		}
		if u.direct {
			lc.recvs = u.cfg.RecvDepth
		}
		lanes = append(lanes, lc)
	}
	if u.direct {
		return lanes
	}
	// The message lane holds the user's receives. All VirtualQPs have it on the same rail, because atomics of two
	// NICs are not atomic with each other.
	message := laneConfig{index: n, role: roleMessage, recvs: u.cfg.RecvDepth}
	notify := laneConfig{index: n + 1, role: roleNotify, rail: (n + 1) % rails, recvs: u.cfg.NotifyDepth}
	switch {
	case u.cfg.Scheme != Spray:
		return append(lanes, message)
	case u.cfg.CxxPeer:
		notify.index, notify.rail = n, 0
		return append(lanes, notify)
	}
	return append(lanes, message, notify)
}

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

// setKeys stores a request's keys for every rail in use.
func (u *setup) setKeys(keys *[MaxRails]keyPair, r *Region, m *RemoteRegion) {
	if r != nil {
		for i := range u.rails.rails {
			keys[i&(MaxRails-1)].local = r.lkeys[i&(MaxRails-1)]
		}
	}
	if m != nil {
		for i, key := range m.RKeys[:u.remoteRails] {
			keys[i&(MaxRails-1)].remote = key
		}
	}
}

// check returns the length of a request and whether its elements lack a key for some rail, or an error that names the
// invalid field.
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
		if !u.rails.hasAll(e) {
			if err := u.rails.checkLocal(e); err != nil {
				return 0, false, fmt.Errorf("SGE %d: %w", i, err)
			}
			partial = partial || e.Length > 0 && !inline
		}
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
	return length, partial, u.checkRemote(wr, length)
}

// hasAll reports whether an element is valid and has a key for every rail, as nearly all are and have. Inlined, it
// saves 2 of 26 ns per SEND on one lane.
func (r *Rails) hasAll(e *SGE) bool {
	g := e.Region
	return g != nil && g.complete.Load() == r && e.Offset <= g.length && uint64(e.Length) <= g.length-e.Offset
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
		e := &wr.SGE[i]
		if !r.hasAll(e) {
			if err := r.checkLocal(e); err != nil {
				return 0, fmt.Errorf("SGE %d: %w", i, err)
			}
		}
		length += uint64(e.Length)
	}
	return length, nil
}
