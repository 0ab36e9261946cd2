package verbs

// SRQConfig describes a shared receive queue.
type SRQConfig struct {
	// MaxWR is how many receives the queue must hold; zero is an error.
	MaxWR int
	// MaxSGE is the most elements of a receive; zero means 1.
	MaxSGE int
	// Limit arms the limit event. The event fires once, when a message takes a
	// receive and fewer than Limit are left. Zero means not armed.
	Limit int
}

// SRQ is a receive queue that several QPs of one PD share.
type SRQ interface {
	// PostRecv posts a chain of receives: wrs[:n] were posted, the rest was not.
	PostRecv(wrs []RecvWR) (n int, err error)
	// SetLimit arms the limit event. EventSRQLimitReached fires once, when fewer than
	// limit receives are left, and must then be armed again. Zero disarms it.
	SetLimit(limit int) error
	// MaxWR is how many receives the queue holds.
	MaxWR() int
	// Close destroys the SRQ. It returns ErrBusy while QPs use it.
	Close() error
}
