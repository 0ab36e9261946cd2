package verbs

// SRQConfig configures a shared receive queue.
type SRQConfig struct {
	// MaxWR is the required capacity in receives; zero is an error.
	MaxWR int
	// MaxSGE is the maximum number of elements per receive; zero means 1.
	MaxSGE int
	// Limit arms EventSRQLimitReached; see SRQ.SetLimit. Zero leaves it disarmed.
	Limit int
}

// SRQ is a receive queue shared by several QPs of one PD. It is safe for concurrent use.
type SRQ interface {
	// PostRecv posts a chain of receives: wrs[:n] were posted, the rest was not. err is as in
	// QP.PostSend.
	PostRecv(wrs []RecvWR) (n int, err error)
	// SetLimit arms the limit event: EventSRQLimitReached fires once, when a message consumes a receive
	// and fewer than limit remain. It must then be armed again. Zero disarms it.
	SetLimit(limit int) error
	// MaxWR returns the queue's capacity in receives.
	MaxWR() int
	// Close destroys the SRQ. It returns ErrBusy while QPs use it.
	Close() error
}
