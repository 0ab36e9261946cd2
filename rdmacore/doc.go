// Package rdmacore is a provider of package verbs for real NICs: ConnectX and other
// hardware, and the kernel's Soft-RoCE, through libibverbs.
//
//	lib, err := rdmacore.Load(rdmacore.Config{})
//	devices, err := lib.Devices()
//	chosen, err := rdmacore.Select("mlx5_0:1", devices)
//	ctx, err := chosen[0].Device.Open()
//
// # The library
//
// libibverbs.so.1 is opened at run time, by [Load]: a program builds and starts without
// it, and without its headers. If it is missing, too old or finds no device, the error
// says so ([ErrNoLibrary], [ErrOldLibrary], [ErrNoDevice]). Without cgo, and on systems
// other than 64-bit Linux, the package has the same functions and Load returns an error
// that wraps verbs.ErrNotSupported.
//
// # Crossing into C
//
// A call into C costs about 40 ns, more than some NICs need for the work itself. So one
// call posts a whole chain or polls a whole slice: batches are what makes this provider
// fast. Requests are checked and built in C, on its stack, and nothing is allocated. Posts
// to one queue take turns at a gate in C, which also keeps the queue alive until they are
// through; it costs one atomic operation, and no lock of Go is taken.
//
// # Completion queues
//
// CQs are extended ones (ibv_create_cq_ex(3)) where the device has them, and plain ones
// otherwise or with Config.PlainCQ; they behave alike. A plain CQ is polled by one call
// into the driver, an extended one by a call for each completion and one for each field:
// only those that mean something are asked for. Against a driver that only loads the field
// an extended CQ costs about 4 ns more for each completion (BenchmarkCgoPoll,
// BenchmarkCgoPollPlain). The driver of Soft-RoCE loses entries if several are taken in one
// go, so there each completion is polled by itself, in the same crossing.
//
// # What this provider adds to libibverbs
//
// Drivers differ in what they check and in what they leave to the program. Here the
// promises of package verbs hold on all of them: a post in the wrong state, with an
// opcode that the transport lacks, or with too many elements is refused before a driver
// sees it; a full queue is verbs.ErrQueueFull whatever errno a driver has for it;
// transitions are checked against the table of ibv_modify_qp(3); closing or resetting a
// QP takes its completions out of its CQs; attributes are reported as they were set.
// State and Query ask the device, which is a system call.
//
// # Events
//
// A context has a goroutine that takes asynchronous events and, once a CQ was made with
// a Waker, one that takes completion events. Both are parked in Go's poller and occupy
// no thread. They end with the context.
//
// # Fork
//
// Memory that a NIC may write must not be copied on write. Programs that start others
// by os/exec are safe: the child runs nothing but exec. For C code in the process that
// forks and goes on, set Config.ForkSafe on kernels before 5.12.
//
// # Not tested on hardware
//
// The suite verbs/verbstest passes on Soft-RoCE. Completion timestamps, dma-buf
// registration, InfiniBand link layers and devices with several ports are written from
// the specification and have not met hardware.
package rdmacore
