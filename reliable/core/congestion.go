package core

// Congestion decides how many bytes a connection may have in flight. Calls come from Step,
// in order; an implementation must not allocate in them.
type Congestion interface {
	// OnSent tells of bytes that were handed to a path at now.
	OnSent(now int64, bytes int)
	// OnAck tells of bytes acknowledged; rtt is 0 if this acknowledgement measured none.
	OnAck(now int64, bytes int, rtt int64)
	// OnLoss tells of bytes that count as lost; timeout says that silence showed it.
	OnLoss(now int64, bytes int, timeout bool)
	// Window is the number of bytes that may be in flight. One chunk always may.
	Window() int
}

// FixedWindow is a Congestion that never changes.
type FixedWindow struct {
	// Bytes is the window.
	Bytes int
}

// OnSent implements Congestion.
func (*FixedWindow) OnSent(int64, int) {}

// OnAck implements Congestion.
func (*FixedWindow) OnAck(int64, int, int64) {}

// OnLoss implements Congestion.
func (*FixedWindow) OnLoss(int64, int, bool) {}

// Window implements Congestion.
func (w *FixedWindow) Window() int { return w.Bytes }
