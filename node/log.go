package node

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"ibverbx/bootstrap"
	"ibverbx/internal/service"
	ibpeer "ibverbx/peer"
)

// about returns the attributes that identify a peer in the log, as package peer names them.
func about(id bootstrap.Peer) []any {
	attrs := []any{slog.String("peer", id.Addr.String())}
	if id.Name != "" {
		attrs = append(attrs, slog.String("name", id.Name))
	}
	return attrs
}

// laneLog is the log of a session's lanes and rails. It drops the records that a VirtualQP and package peer write about the session as a
// whole, because the Node writes its own.
type laneLog struct{ slog.Handler }

// laneLog returns the log for sessions, or nil without Config.Log.
func (n *Node) laneLog() *slog.Logger {
	if n.log.Handler() == slog.DiscardHandler {
		return nil
	}
	return slog.New(laneLog{n.log.Handler()})
}

// Handle implements slog.Handler.
func (l laneLog) Handle(ctx context.Context, r slog.Record) error {
	if r.Message == "connected" || r.Message == "closed" || r.Message == "failed" {
		return nil
	}
	return l.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (l laneLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	return laneLog{l.Handler.WithAttrs(attrs)}
}

// WithGroup implements slog.Handler.
func (l laneLog) WithGroup(name string) slog.Handler { return laneLog{l.Handler.WithGroup(name)} }

// orderly reports whether this side has closed a session because it no longer needs it.
func orderly(cause error) bool {
	return errors.Is(cause, ErrClosed) || errors.Is(cause, service.ErrDetached)
}

// closedInOrder reports whether one side closed the session because it no longer needs it. Otherwise the peer states a reason.
func (s *session) closedInOrder(cause error) bool {
	return orderly(cause) || s.conn.Err() == bootstrap.ErrPeerClosed //nolint:errorlint // a reason would wrap it
}

// reason returns the reason sent to the peer when this side closes a connection; empty if it closes in order. Other errors may contain local
// names.
func reason(cause error) string {
	var refused *refusedError
	switch {
	case orderly(cause):
		return ""
	case errors.As(cause, &refused):
		return refused.Error()
	case errors.Is(cause, bootstrap.ErrProtocol), errors.Is(cause, ErrVersion):
		return cause.Error()
	}
	return "the session failed"
}

// logEstablished counts and logs a new session. The lock is held.
func (n *Node) logEstablished(p *Peer, made *ibpeer.Session) {
	t := n.hosts[p.host]
	t.Sessions++
	attrs := append(about(p.identity), "realm", p.realm.name, "link", string(made.Link), "sealed", made.Agreed.Sealed)
	if p.lostAt.IsZero() {
		n.log.Info("peer ready", attrs...)
	} else {
		t.Reconnects++
		n.log.Info("peer back", append(attrs, "outage", time.Since(p.lostAt))...)
	}
	p.lostAt = time.Time{}
	if n.cfg.Link != ibpeer.LinkUDP && made.LinkReason != "" {
		n.log.Debug("no shared memory", append(about(p.identity), "reason", made.LinkReason)...)
	}
}

// logLoss counts and logs the loss or orderly close of an established session. The lock is held.
func (n *Node) logLoss(s *session, cause error) {
	p := s.peer
	t, attrs := n.hosts[p.host], append(about(p.identity), "cause", cause)
	if s.closedInOrder(cause) {
		t.Closed++
		n.log.Info("peer closed", attrs...)
		return
	}
	t.Losses++
	p.lostAt = time.Now()
	n.log.Warn("peer lost", attrs...)
}
