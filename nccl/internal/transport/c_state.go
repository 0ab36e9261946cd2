package transport

import "sync/atomic"

// Depth is the maximum number of outstanding requests per connection.
const Depth = 64

// States of a Request. C moves it from free to busy and from done to free, Go from busy to done.
const (
	RequestFree = iota
	RequestBusy
	RequestDone
)

// Request is a request that C can test without calling Go. It has the layout of struct ibx_request in shim/seam.h.
type Request struct {
	// State is a state above. Result and Size are valid once it is RequestDone.
	State atomic.Uint32
	// Result is the outcome.
	Result Result
	// Size is the message length in bytes.
	Size uint64
	// Owner belongs to C.
	Owner uintptr
}

// Words is the state of a Comm that C reads. It has the layout of struct ibx_words in shim/seam.h.
type Words struct {
	// Granted counts the receives granted by the peer.
	Granted atomic.Uint32
	// Result is the error of a failed Comm, otherwise OK.
	Result atomic.Int32
	// Worker is the number of the worker that serves the Comm, or MaxWorkers without one.
	Worker   uint32
	_        uint32
	Requests [Depth]Request
}

// finish reports the outcome of a request.
func (r *Request) finish(res Result, size uint64) {
	r.Result, r.Size = res, size
	r.State.Store(RequestDone)
}

// Result is the outcome of a call: a value of ncclResult_t, or Again.
type Result int32

// Results. Again means that the call must be repeated later, and Gone that the Shard is freed.
const (
	Gone            Result = -2
	Again           Result = -1
	OK              Result = 0
	SystemError     Result = 2
	InternalError   Result = 3
	InvalidArgument Result = 4
	RemoteError     Result = 6
)
