package ring

const (
	// MaxDatagrams is the number of datagrams that a Datagrams holds.
	MaxDatagrams = 256
	// fewDatagrams is the initial capacity. Most queues never need more.
	fewDatagrams = 4
)

// Datagrams is a bounded queue of datagrams. A full queue drops its oldest datagram, because later datagrams supersede earlier ones.
// The zero value is closed and drops everything. The queue and its slots grow with their contents.
type Datagrams struct{ queue Ring[[]byte] }

// Open makes the queue keep datagrams from now on.
func (q *Datagrams) Open() {
	if q.queue.Cap() == 0 {
		q.queue = New[[]byte](fewDatagrams)
	}
}

// Put copies a datagram into the queue. It reports whether a datagram was lost: the oldest one if the queue is full, b if the queue is
// closed.
func (q *Datagrams) Put(b []byte) (lost bool) {
	r := &q.queue
	if r.Cap() == 0 {
		return true
	}
	if r.Full() && r.Cap() < MaxDatagrams {
		r.Grow()
	} else if lost = r.Full(); lost {
		r.Drop(1)
	}
	d := r.Extend()
	*d = append((*d)[:0], b...)
	return lost
}

// Take moves the oldest datagram to b and returns its length, or 0 if the queue is empty.
func (q *Datagrams) Take(b []byte) int {
	if q.queue.Len() == 0 {
		return 0
	}
	n := copy(b, *q.queue.Front())
	q.queue.Drop(1)
	return n
}
