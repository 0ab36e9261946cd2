package core

// Congestion decides how many bytes a connection may have in flight. Step calls it in the order of
// events. An implementation must not allocate.
type Congestion interface {
	// OnSent reports bytes that were handed to a path at now.
	OnSent(now int64, bytes int)
	// OnAck reports acknowledged bytes. rtt is the round trip time, or 0 if none was measured.
	OnAck(now int64, bytes int, rtt int64)
	// OnLoss reports lost bytes. With timeout the loss is assumed after a timeout.
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
