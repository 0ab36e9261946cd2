package verbs

// SRQConfig describes a shared receive queue.
type SRQConfig struct {
	// MaxWR is how many receives the queue must hold; zero is an error.
	MaxWR int
	// MaxSGE is how many elements a receive may have; zero means 1.
	MaxSGE int
	// Limit arms the limit event: it comes once when a message takes a receive and
	// fewer than Limit are left. Zero means not armed.
	Limit int
}

// SRQ is a receive queue that several QPs of one PD share.
type SRQ interface {
	// PostRecv posts a chain of receives: wrs[:n] were taken, nothing after n was.
	PostRecv(wrs []RecvWR) (n int, err error)
	// SetLimit arms the limit event: EventSRQLimitReached comes once, when fewer
	// than limit receives are left, and must then be armed again. Zero disarms.
	SetLimit(limit int) error
	// MaxWR is how many receives the queue holds.
	MaxWR() int
	// Close destroys the SRQ; ErrBusy while QPs use it.
	Close() error
}
