package ibverbx

import (
	"fmt"
	"math"

	"ibverbx/verbs"
)

// setup is what the parts of a VirtualQP have in common. It is written while the VirtualQP is
// built and connected, and read only after that.
type setup struct {
	// owner is the VirtualQP, as completions and events name it. Parts call no method of it.
	owner *VirtualQP
	num   uint32 // unique on the VirtualCQ
	// incarnation names this VirtualQP in its card and in control messages; never 0.
	incarnation uint64
	peer        uint64 // the incarnation of the peer; 0 before Connect
	// cfg has its defaults filled in.
	cfg    Config
	rails  *Rails          // cq's rails
	cq     *VirtualCQ      // where the completions of all lanes arrive
	shared *sharedReceives // the shared pool of engine receives; nil if every lane has its own
	pool   *dataPool       // the shared data receives; nil if the VirtualQP has its own
	scheme notifier        // nil if direct
	direct bool            // the only lane passes everything through

	// all are the lanes by index: data lanes first, then the message lane and the notify lane.
	all   []*lane
	lanes []*lane // the data lanes: the first ones of all
	// messageLane carries SENDs and atomics; nil if direct.
	messageLane *lane
	// notifyLane carries the notifications of Spray; nil in other schemes.
	notifyLane *lane

	// remoteRails is the number of the peer's rails, by which its keys are counted; 0 before Connect.
	remoteRails int
	// remoteRecvs is the number of messages that the peer accepts without a user receive.
	remoteRecvs int
	// remoteGIDs are the addresses of the peer's lanes and rails in its card, and the addresses of rails missing there.
	// Rebuilt lanes must use one of them. failover.allowsGID adds addresses after Connect.
	remoteGIDs []verbs.GID
	// addresses and remoteAddresses are Card.Addresses of this side and of the peer; empty if a card has none.
	addresses, remoteAddresses []verbs.GID
	// maxMsg is the size of the largest fragment that every lane and the peer can take, in bytes.
	maxMsg uint32
	mtu    uint32 // the smallest of the rails, in bytes
	// minCut is the size of the smallest fragment that is worth its doorbell, in bytes.
	minCut   uint32
	maxWhole uint32 // the maximum length in bytes of an unfragmented request; 0 before Connect
	maxSGE   uint8  // how many SGEs every device allows
	// keepsWhole says that requests on memory of a device are not cut: on every rail the device copies them, and
	// every fragment would wait for it (verbs.PortAttr.DeviceCopies). Config.FragmentSize is 0.
	keepsWhole bool
}

// cachedClock is the time of a call: it stands still until the next tick.
type cachedClock struct {
	now  int64        // in nanoseconds; valid while the clock runs
	read func() int64 // Config.Now
	runs bool         // something needs the time
	// failover is set when failover needs the time, whatever the policy does.
	failover bool
}

// run starts the clock, or stops it unless failover needs it.
func (c *cachedClock) run(on bool) { c.runs = on || c.failover }

// tick reads the clock if something needs the time.
func (c *cachedClock) tick() {
	if c.runs {
		c.now = c.read()
	}
}

// queueReport makes the next report look at the VirtualQP.
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

// receives is the number of engine receives that can be filled between two polls.
func (u *setup) receives() int {
	if u.shared != nil {
		return u.shared.depth * u.rails.Len()
	}
	return (u.cfg.Lanes + 1) * u.cfg.NotifyDepth
}

// fragmentSize returns the size of the fragments of a request, in bytes: Config.FragmentSize or, if
// that is 0, equal parts for all lanes. The bounds are what makes a fragment worth its doorbell and
// what every NIC can take. NICs that work on the caller's core carry one fragment after the other:
// there, many gain nothing.
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

// plan returns the lanes of a VirtualQP: data lanes spread over the rails, then the message lane
// and, with Spray, the notify lane. The C++ implementation lays blocks of QPs over the rails, and
// has one more QP for notifications, which takes atomics too.
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
	// The message lane holds the user's receives. It is on the same rail for all VirtualQPs, because
	// atomics of two NICs are not atomic together.
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

// leadingPlain returns how many requests at the front of wrs are legal and WRITEs or READs of one piece of memory without
// special flags. All other requests take the slower way through check.
func (u *setup) leadingPlain(wrs []SendWR) int {
	return u.plainPrefix(wrs, plainOps, plainFlags, math.MaxUint32)
}

// plainPrefix returns how many requests at the front of wrs are plain, with these opcodes, no other flags, and at most most bytes. Every
// short request passes it, so it is one loop without calls. The atomic load is a separate condition and the shift is bounded:
// otherwise a request takes 13 more instructions than 215 (BenchmarkMessage, one lane).
func (u *setup) plainPrefix(wrs []SendWR, ops uint32, flags verbs.SendFlags, most uint32) int {
	rails, remoteRails, others := u.rails, u.remoteRails, ^flags
	var known *RemoteRegion // it has a key for every rail
	for i := range wrs {
		wr := &wrs[i]
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
		if wr.Opcode > 31 || ops&(1<<(wr.Opcode&31)) == 0 || wr.Flags&others != 0 || length == 0 || e.Length > most ||
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

// check returns the length of a request, or an error that describes the invalid field.
func (u *setup) check(wr *SendWR) (length uint64, err error) {
	if wr.NumSGE > u.maxSGE {
		return 0, verbs.Invalidf("%d SGEs, the devices allow %d", wr.NumSGE, u.maxSGE)
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
		if err := u.rails.checkLocal(e); err != nil {
			return 0, fmt.Errorf("SGE %d: %w", i, err)
		}
		if inline && e.Region.memory == nil {
			return 0, verbs.Invalidf("SGE %d: INLINE bytes are copied by the CPU, which cannot access the dma-buf or the device of the region", i)
		}
	}
	atomic, message := isAtomic(wr.Opcode), isMessage(wr.Opcode)
	switch {
	case atomic && length != 8:
		return 0, verbs.Invalidf("%s needs a local buffer of 8 bytes, not %d", wr.Opcode, length)
	case message && u.cfg.CxxPeer && !u.direct:
		return 0, verbs.Invalidf("%s on several lanes: a C++ peer has no lane for messages", wr.Opcode)
	case (message || u.direct) && length > uint64(u.maxMsg):
		return 0, verbs.Invalidf("%s of %d bytes must fit one lane, which takes %d", wr.Opcode, length, u.maxMsg)
	case length > math.MaxUint32:
		return 0, verbs.Invalidf("%d bytes, at most %d fit one request", length, uint32(math.MaxUint32))
	case inline && (atomic || wr.Opcode == verbs.OpRDMARead):
		return 0, verbs.Invalidf("INLINE is not legal on %s", wr.Opcode)
	case inline && length > uint64(u.cfg.MaxInline):
		return 0, verbs.Invalidf("%d inline bytes, the lanes take %d (Config.MaxInline)", length, u.cfg.MaxInline)
	}
	if message || length == 0 {
		return length, nil // it does not access the peer's memory (IBTA C9-88)
	}
	return length, u.checkRemote(wr, length)
}

// checkLocal returns an error that describes what is invalid about an element.
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

// checkRecv returns the length of a receive, or an error that describes the invalid field.
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

// checkRecv returns the length of a receive of at most maxSGE elements, or an error that describes the invalid field.
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
