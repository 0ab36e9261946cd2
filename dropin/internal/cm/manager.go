package cm

import (
	"maps"
	"net/netip"
	"slices"
	"sync"
	"syscall"

	"ibverbx/verbs"
)

// maxIDs bounds the ids of a process. librdmacm finds ids by their numbers in a table of this size.
const maxIDs = 1 << 16

// Manager is the connection manager of a process.
type Manager struct {
	cfg Config

	// mu guards everything below, and all files and ids.
	mu sync.Mutex
	// ids are the ids by number. Number 0 is unused. Numbers below free are in use.
	ids  []*id
	free int
	// groups are the joined multicast groups by number.
	groups    map[uint32]*group
	lastGroup uint32
}

// New returns a Manager without files.
func New(cfg Config) *Manager {
	return &Manager{cfg: cfg, ids: make([]*id, 1), free: 1, groups: map[uint32]*group{}}
}

// File is an open /dev/infiniband/rdma_cm, an event channel to librdmacm.
type File struct {
	m      *Manager
	tokens Tokens
	closed bool
	// queue holds the undelivered events. tokens has as many tokens.
	queue []pending
}

// pending is an undelivered event.
type pending struct {
	Event
	// of is the id that counts the event. For a CONNECT_REQUEST, it is the listening one, and request is the new one.
	of, request *id
	// group counts the event instead of its id, unless it is nil.
	group *group
}

// id is one rdma_cm_id.
type id struct {
	m      *Manager
	number uint32
	// uid is the program's name for the id. It is 0 for an unanswered request, which does not receive events.
	uid   uint64
	file  *File
	space uint16
	state state
	// delivered counts the events that the program has consumed, and must acknowledge before it may
	// free the id.
	delivered uint32

	port          Port // nil before Bind and Resolve, and for passive connections
	local, remote netip.AddrPort
	device        *Device // nil while bound to a wildcard address
	conn          Conn    // nil before Connect, and after the connection's end
	// backlog is the number of further requests that a listening id may queue.
	backlog   int
	own, peer Side
	// depth and resources are the numbers of outstanding READs and atomics that this side may issue
	// and accepts. retry is its retry count.
	depth, resources, retry uint8
	only6                   bool
	tos                     uint8
	// ackTimeout is 0 for the default.
	ackTimeout uint8
	// stopTimer cancels the pending DISCONNECTED or TIMEWAIT_EXIT event; nil if none is pending.
	stopTimer func()
	qkey      uint32 // of datagrams
}

// state is the state of an id.
type state uint8

const (
	stateIdle state = iota
	stateBound
	stateListening
	stateResolved  // after ADDR_RESOLVED
	stateRouted    // after ROUTE_RESOLVED
	stateRequested // active: sent REQ
	stateReplied   // active: received REP
	stateIncoming  // passive: received REQ
	stateAccepted  // passive: sent REP
	stateConnected
	stateLeaving // sent DREQ
	stateOver    // rejected, unreachable or disconnected
	stateDestroyed
)

func (m *Manager) report(format string, args ...any) {
	if m.cfg.Report != nil {
		m.cfg.Report(format, args...)
	}
}

// Open returns a new File.
func (m *Manager) Open(tokens Tokens) *File { return &File{m: m, tokens: tokens} }

// Close destroys all ids of the file.
func (f *File) Close() {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	f.closed = true
	for _, i := range f.m.ids {
		if i != nil && i.file == f {
			i.destroy()
		}
	}
}

// add gives an id the lowest free number. It returns ENOMEM if all are in use.
func (m *Manager) add(i *id) error {
	for m.free < len(m.ids) && m.ids[m.free] != nil {
		m.free++
	}
	if m.free == maxIDs {
		return syscall.ENOMEM
	}
	if m.free == len(m.ids) {
		m.ids = append(m.ids, nil)
	}
	m.ids[m.free] = i
	i.m, i.number = m, uint32(m.free)
	return nil
}

// find returns an id of the file. Its caller holds mu.
func (f *File) find(number uint32) (*id, error) {
	if uint64(number) >= uint64(len(f.m.ids)) || f.m.ids[number] == nil {
		return nil, syscall.ENOENT
	}
	i := f.m.ids[number]
	if i.file != f {
		return nil, syscall.EINVAL
	}
	return i, nil
}

// with calls do for an id of the file, with the lock held.
func (f *File) with(number uint32, do func(*id) error) error {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	i, err := f.find(number)
	if err != nil {
		return err
	}
	return do(i)
}

// The port spaces of connections and of datagrams (RDMA_PS_TCP, RDMA_PS_UDP).
const (
	SpaceTCP uint16 = 0x0106
	SpaceUDP uint16 = 0x0111
)

// Create creates an id that the program identifies by uid, which must not be 0.
func (f *File) Create(uid uint64, space uint16) (number uint32, err error) {
	if space != SpaceTCP && space != SpaceUDP {
		return 0, syscall.EPROTONOSUPPORT
	}
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if f.closed {
		return 0, syscall.EBADF
	}
	i := &id{uid: uid, file: f, space: space, qkey: defaultQKey}
	if err := f.m.add(i); err != nil {
		return 0, err
	}
	return i.number, nil
}

// Destroy destroys an id. It returns the number of its delivered events.
func (f *File) Destroy(number uint32) (delivered uint32, err error) {
	err = f.with(number, func(i *id) error {
		delivered = i.delivered
		i.destroy()
		return nil
	})
	return delivered, err
}

// destroy closes the id's connection, drops its events and releases its number. An unanswered request is rejected, a connection
// disconnected.
func (i *id) destroy() {
	i.end()
	if i.port != nil {
		i.port.Close()
		i.port = nil
	}
	i.setOver()
	i.state = stateDestroyed
	i.m.ids[i.number] = nil
	i.m.free = min(i.m.free, int(i.number))
	if i.stopTimer != nil {
		i.stopTimer()
		i.stopTimer = nil
	}
	maps.DeleteFunc(i.m.groups, func(_ uint32, g *group) bool { return g.id == i })
	for _, p := range i.file.drop(func(p pending) bool { return p.of == i }) {
		if p.request != nil {
			p.request.destroy()
		}
	}
}

// drop removes events, with their tokens.
func (f *File) drop(match func(pending) bool) (dropped []pending) {
	f.queue = slices.DeleteFunc(f.queue, func(p pending) bool {
		if !match(p) {
			return false
		}
		dropped = append(dropped, p)
		return true
	})
	f.tokens.Drop(len(dropped))
	return dropped
}

// end sends the message that the peer of a destroyed id expects.
func (i *id) end() {
	switch i.state {
	case stateRequested:
		i.conn.Send(&Message{Kind: REJ, Reason: RejectTimeout})
	case stateReplied, stateIncoming, stateAccepted:
		i.conn.Send(&Message{Kind: REJ, Reason: RejectConsumer})
	case stateConnected:
		i.conn.Send(&Message{Kind: DREQ})
	default: // the peer expects none
	}
}

// setOver releases the connection.
func (i *id) setOver() {
	i.state = stateOver
	if i.conn != nil {
		i.conn.Close()
		i.conn = nil
	}
}

// Migrate moves an id, with its events, from the file from to f. It returns the number of events delivered before.
func (f *File) Migrate(from *File, number uint32) (delivered uint32, err error) {
	err = from.with(number, func(i *id) error {
		if f.closed {
			return syscall.EBADF
		}
		delivered = i.delivered
		if f == from {
			return nil
		}
		i.file = f
		for _, p := range from.drop(func(p pending) bool { return p.of == i }) {
			f.push(p)
			if p.request != nil {
				p.request.file = f
			}
		}
		return nil
	})
	return delivered, err
}

// EventType is the type of an Event (enum rdma_cm_event_type).
type EventType uint32

// The events of connections and groups.
const (
	AddrResolved    EventType = 0
	AddrError       EventType = 1
	RouteResolved   EventType = 2
	ConnectRequest  EventType = 4
	ConnectResponse EventType = 5
	Unreachable     EventType = 7
	Rejected        EventType = 8
	Established     EventType = 9
	Disconnected    EventType = 10
	MulticastJoin   EventType = 12
	TimewaitExit    EventType = 15
)

// Event reports a change of an id to the program.
type Event struct {
	// UID is the program's name for the id. A ConnectRequest has the UID of the listening id.
	UID  uint64
	ID   uint32
	Type EventType
	// Status is a negative errno, the reason of a rejection, or 0.
	Status int32
	Param  Param
	// AH is the destination of datagrams. It is nil for ids of connections.
	AH *verbs.AHAttr
}

// post queues an event of an id, unless its uid is 0.
func (i *id) post(typ EventType, status int32, p Param) {
	if i.uid != 0 {
		i.file.push(pending{Event: i.event(typ, status, p), of: i})
	}
}

func (i *id) event(typ EventType, status int32, p Param) Event {
	e := Event{UID: i.uid, ID: i.number, Type: typ, Status: status, Param: p}
	if i.space == SpaceUDP {
		e.AH = i.route()
	}
	return e
}

func (f *File) push(p pending) {
	f.queue = append(f.queue, p)
	f.tokens.Add()
}

// Event returns the oldest event, for a caller that has consumed a token. It returns EAGAIN if the
// token's event has been dropped.
func (f *File) Event() (Event, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if len(f.queue) == 0 {
		return Event{}, syscall.EAGAIN
	}
	p := f.queue[0]
	f.queue = slices.Delete(f.queue, 0, 1)
	if p.group != nil {
		p.group.delivered++
	} else {
		p.of.delivered++
	}
	if p.request != nil {
		p.of.backlog++
	}
	return p.Event, nil
}
