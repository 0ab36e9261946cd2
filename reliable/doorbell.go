package reliable

// DoorbellCounter is implemented by wrapped contexts, except when Config.FallBackToRC took effect. It is
// safe for concurrent use.
type DoorbellCounter interface {
	// Doorbells returns the context's posts to its NIC so far.
	Doorbells() Doorbells
}

// Doorbells counts the requests that a wrapped context posted to its NIC, and the calls that posted
// them. Each call rings one doorbell; many requests per doorbell are efficient.
type Doorbells struct {
	Sends        uint64 // requests on paths: chunks and small control packets
	SendRings    uint64 // doorbells for these
	Controls     uint64 // packets on control QPs, mostly acknowledgements
	ControlRings uint64 // doorbells for these
	Receives     uint64 // reposted receive buffers of paths and control QPs
	RecvRings    uint64 // doorbells for these
}

var _ DoorbellCounter = (*pathContext)(nil)

func (ctx *pathContext) Doorbells() Doorbells {
	ctx.mu.Lock()
	defer ctx.mu.Unlock()
	sum := ctx.doorbells
	ctx.each(func(e *engine) { sum.add(&e.doorbells) })
	return sum
}

// add adds what another has counted.
func (d *Doorbells) add(o *Doorbells) {
	d.Sends += o.Sends
	d.SendRings += o.SendRings
	d.Controls += o.Controls
	d.ControlRings += o.ControlRings
	d.Receives += o.Receives
	d.RecvRings += o.RecvRings
}

// sent counts a chain of n sends on a path.
func (d *Doorbells) sent(n int) {
	d.Sends += uint64(n)
	d.SendRings++
}

// controlled counts a chain of n packets on a control QP.
func (d *Doorbells) controlled(n int) {
	d.Controls += uint64(n)
	d.ControlRings++
}

// refilled counts a chain of n receive buffers.
func (d *Doorbells) refilled(n int) {
	d.Receives += uint64(n)
	d.RecvRings++
}
