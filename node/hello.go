package node

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync/atomic"

	"ibverbx/bootstrap"
	"ibverbx/internal/service"
	"ibverbx/internal/wire"
)

// A hello opens a session and introduces services. Both sides send at least one:
//
//	lowest version u16, highest version u16, 0 u32, session u64, resume u64, introductions
//
// The dialer's first one contains only the header, so that a peer of any version can read it. The listener responds with its
// services, and the dialer then sends its own. A service attached later is introduced by another hello. Each side introduces a
// service once per session. An introduction is:
//
//	service u8, version u16, length u16, body
//
// Introductions of unknown services are ignored. service.NodeID is reserved for optional fields of later versions.

// Versions of this package's messages. Version 1 was without introductions.
const (
	version       = 2
	silentVersion = 1
)

// introduction is a service of one side of a session.
type introduction struct {
	id      service.ID
	version uint16
	body    []byte
}

// appendIntroductions encodes a list.
func appendIntroductions(b []byte, list []introduction) []byte {
	for _, i := range list {
		b = binary.LittleEndian.AppendUint16(append(b, byte(i.id)), i.version)
		b = binary.LittleEndian.AppendUint16(b, uint16(len(i.body)))
		b = append(b, i.body...)
	}
	return b
}

// readIntroductions returns the introductions with a valid service id, each at most once.
func readIntroductions(r *wire.Reader) (list []introduction) {
	var seen [service.IDs]bool
	for r.OK() && r.Len() > 0 {
		i := introduction{id: service.ID(r.U8()), version: r.U16()}
		i.body = r.Take(int(r.U16()))
		if i.id == service.NodeID || i.id >= service.IDs {
			continue
		}
		r.Check(i.version > 0 && len(i.body) <= service.MaxHello && !seen[i.id])
		seen[i.id] = true
		list = append(list, i)
	}
	return list
}

// mismatch is an ErrVersion that names the versions of both sides.
func mismatch(protocol string, lowest, highest, ours uint16) error {
	theirs := fmt.Sprint(lowest)
	if highest != lowest {
		theirs = fmt.Sprintf("%d to %d", lowest, highest)
	}
	return fmt.Errorf("%w: peer speaks %s protocol %s, this side %d", ErrVersion, protocol, theirs, ours)
}

// agree checks the versions in a hello.
func agree(m *message) error {
	if m.lowest > version || m.highest < version {
		return fmt.Errorf("%w: %w", ErrRefused, mismatch(service.NodeID.String(), m.lowest, m.highest, version))
	}
	return nil
}

// hello returns the local hello.
func (s *session) hello(list []introduction) message {
	return message{kind: kindHello, lowest: version, highest: version, session: s.id, services: list}
}

// services records the services introduced by both sides of a session. Peer.calling guards it.
type services struct {
	// local holds the local services whose Hello was called.
	local [service.IDs]*service.Service
	// introduced has a bit for each introduced local service. Detach reads it without calling.
	introduced atomic.Uint32
	// remote holds the peer's services.
	remote [service.IDs]*introduction
	// refused has a bit for each service whose versions differ.
	refused uint16
}

// meet records the introductions in the peer's hello.
func (s *session) meet(m *message) error {
	if m.session != s.id {
		return violation("a hello of session %d in session %d", m.session, s.id)
	}
	s.peer.calling.Lock()
	defer s.peer.calling.Unlock()
	for i := range m.services {
		known := &s.services.remote[m.services[i].id]
		if *known != nil {
			return violation("service %d is introduced twice", m.services[i].id)
		}
		*known = &m.services[i]
	}
	return nil
}

// sendServices sends the first hello that introduces services.
func (s *session) sendServices(ctx context.Context) error {
	s.peer.calling.Lock()
	m := s.hello(s.introduce())
	s.peer.calling.Unlock()
	return s.conn.Send(ctx, bootstrap.KindService, m.encode())
}

// introduce returns the services that the peer does not know. The caller sends them. A service that replaces an introduced one waits for
// the next session. calling is held.
func (s *session) introduce() (list []introduction) {
	v := &s.services
	for id, sv := range s.peer.node.services.Load().byID {
		if sv == nil || v.local[id] == sv || v.introduced.Load()&(1<<id) != 0 {
			continue
		}
		v.local[id] = sv
		body, ok := sv.Handler.Hello(s)
		switch {
		case !ok:
			continue
		case len(body) > service.MaxHello:
			s.End(fmt.Errorf("%w: the hello of service %d has %d bytes, want at most %d", bootstrap.ErrTooLong, id, len(body), service.MaxHello))
			return nil
		}
		v.introduced.Or(1 << id)
		list = append(list, introduction{service.ID(id), sv.Version, body})
	}
	return list
}

// bringUp introduces new services, and calls Up for services attached on both sides.
func (s *session) bringUp() {
	s.peer.calling.Lock()
	defer s.peer.calling.Unlock()
	s.bringUpLocked()
}

// bringUpLocked is bringUp with calling held. It returns the local services.
func (s *session) bringUpLocked() *serviceTable {
	t := s.peer.node.services.Load()
	if list := s.introduce(); len(list) > 0 {
		_ = s.send(s.hello(list)) // it only fails if the session is lost
	}
	v := &s.services
	for id, sv := range t.byID {
		theirs := v.remote[id]
		switch {
		case sv == nil || theirs == nil || v.local[id] != sv || v.introduced.Load()&(1<<id) == 0 || s.peer.up[id].Load() == sv:
		case theirs.version == sv.Version:
			sv.Handler.Up(s, theirs.body)
			s.markUp(sv)
		case v.refused&(1<<id) == 0:
			v.refused |= 1 << id
			sv.Handler.Gone(servicePeer{s.peer}, mismatch(sv.ID.String(), theirs.version, theirs.version, sv.Version))
		}
	}
	return t
}

// bringDown calls Down for the services that have received Up.
func (s *session) bringDown(cause error) {
	s.peer.calling.Lock()
	defer s.peer.calling.Unlock()
	for id, sv := range s.peer.node.services.Load().byID {
		if up := &s.peer.up[id]; sv != nil && up.Swap(nil) == sv {
			sv.Handler.Down(s, cause)
		}
	}
}

// endIfIntroduced closes the session if it introduced the detached service.
func (p *Peer) endIfIntroduced(id service.ID) {
	p.node.mu.Lock()
	s := p.current
	p.node.mu.Unlock()
	if s != nil && s.services.introduced.Load()&(1<<id) != 0 {
		s.End(fmt.Errorf("%w: service %d: %w", ErrLost, id, service.ErrDetached))
	}
}

// earlyImmediate is an immediate that arrives before Up. The peer's service may send one once it knows the local service, and immediates overtake
// the hello that introduces the peer's.
type earlyImmediate struct{ imm, length uint32 }

// maxEarlyImmediates limits the immediates before Up. Services limit their unacknowledged immediates to fewer.
const maxEarlyImmediates = 1024

// markUp delivers the immediates that waited for Up.
func (s *session) markUp(sv *service.Service) {
	s.peer.shard.do(func() {
		s.peer.up[sv.ID].Store(sv)
		waiting := s.early
		s.early = nil
		for _, e := range waiting {
			s.immediate(e.imm, e.length)
		}
	})
}

// dispatch passes a message to its service.
func (s *session) dispatch(body []byte) {
	s.peer.calling.Lock()
	defer s.peer.calling.Unlock()
	t := s.bringUpLocked()
	id := body[0]
	if id >= service.IDs || t.byID[id] == nil || s.peer.up[id].Load() != t.byID[id] {
		s.peer.unclaimed.Add(1)
		return
	}
	t.byID[id].Handler.Message(s, body[1:])
}

// immediate passes an immediate to its service. The shard's lock is held.
func (s *session) immediate(imm, length uint32) {
	sv := s.peer.node.services.Load().byClass[service.Class(imm)]
	switch {
	case sv == nil:
		s.peer.unclaimed.Add(1)
	case s.peer.up[sv.ID].Load() == sv:
		sv.Handler.Immediate(s, imm, length)
	case len(s.early) < maxEarlyImmediates:
		s.early = append(s.early, earlyImmediate{imm, length})
	default:
		s.End(violation("%d immediates for service %d, which the peer has not introduced", maxEarlyImmediates, sv.ID))
	}
}
