// Package rdmacore implements package verbs on real NICs through libibverbs: ConnectX and other
// hardware, and the kernel's Soft-RoCE.
//
//	lib, err := rdmacore.Load(rdmacore.Config{})
//	devices, err := lib.Devices()
//	chosen, err := rdmacore.Select("mlx5_0:1", devices)
//	ctx, err := chosen[0].Device.Open()
//
// # The library
//
// [Load] opens libibverbs.so.1 at run time. A program builds and starts without the library and without
// its headers. Errors distinguish a missing library, an old one, and a system without devices
// ([ErrNoLibrary], [ErrOldLibrary], [ErrNoDevice]). Without cgo, and on systems other than 64-bit Linux,
// the package has the same functions, and Load returns an error that wraps verbs.ErrNotSupported.
//
// # Crossing into C
//
// A call into C costs about 40 ns, more than some NICs need for the work itself. One call therefore
// posts a whole chain or polls a whole slice. Requests are checked and built in C, on its stack, without
// allocation. A gate in C serializes posts to one queue and keeps the queue alive until they finish. It
// costs one atomic operation and no Go lock. QP.PostSend (post.go) and CQ.Poll (cq.go) call the C
// functions in shim.c and datapath.h through cgo.go.
//
// # Completion queues
//
// CQs are extended (ibv_create_cq_ex(3)) if the device supports that, and plain otherwise or with
// Config.PlainCQ. Both behave alike. A plain CQ is polled with one driver call per batch. An extended CQ
// needs one call per completion and one per meaningful field, about 4 ns more per completion with a
// trivial driver (BenchmarkCgoPoll, BenchmarkCgoPollPlain). This package serializes all driver calls on
// a CQ, so extended CQs are created without the driver's lock if possible
// (IBV_CREATE_CQ_ATTR_SINGLE_THREADED). The Soft-RoCE driver loses entries if several are polled at once,
// so each completion is polled separately there, in the same crossing.
//
// # Additions to libibverbs
//
// Drivers differ in their checks. This provider keeps the guarantees of package verbs on all of them:
//
//   - A post in the wrong state, with an opcode that the transport lacks, or with too many
//     elements is rejected before the driver sees it.
//   - A full queue is verbs.ErrQueueFull, whatever errno the driver returns.
//   - Transitions are checked against the table of ibv_modify_qp(3).
//   - Closing or resetting a QP removes its completions from its CQs.
//   - Attributes are reported as they were set.
//   - Objects of a failed device can be closed. libibverbs refuses to destroy them once the kernel
//     has removed the device.
//
// State and Query query the device, which is a system call.
//
// # Events
//
// A context has one goroutine for asynchronous events. A second one for completion events starts with
// the first CQ that has a Waker. Both are parked in Go's poller, occupy no thread, and exit when the
// context is closed.
//
// # Fork
//
// Memory that a NIC may write must not be copied on write. Programs that start others with os/exec are
// safe, because the child only runs exec. If C code in the process forks without exec, set
// Config.ForkSafe on kernels before 5.12.
//
// # Not tested on hardware
//
// The suite verbs/verbstest passes on Soft-RoCE. Completion timestamps and their clock, dma-buf
// registration, InfiniBand link layers and devices with several ports follow the specification but have
// not been tested on hardware.
//
// # Changes
//
// docs/api.md lists the lasting API. Unexported code may change freely while verbstest passes on
// Soft-RoCE (make test-rxe). The flat layouts must match package verbs; cgo.go asserts that at compile
// time.
package rdmacore
