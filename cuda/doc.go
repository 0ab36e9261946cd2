// Package cuda uses the memory of NVIDIA GPUs: it allocates it, adopts memory of other libraries, copies
// it, and exports it to NICs and to other processes.
//
//	gpu, err := cuda.Open(0)
//	mem, err := gpu.Alloc(1 << 30)
//	_, err = mem.WriteAt(bytes, 0)
//	region, err := pd.RegisterMemory(mem, verbs.AccessAll)
//
// The memory is a [verbs.Memory] without Bytes, because the CPU cannot access it.
//
// # The library
//
// The package opens libcuda.so.1, the NVIDIA driver, at run time. A program builds and starts without
// CUDA, its headers or a GPU. Without a driver [Load] and [Open] return [ErrNoDriver], which wraps
// verbs.ErrNotSupported and says why. It is the same without cgo, and on systems other than 64-bit
// Linux.
//
// # Threads
//
// CUDA has a current context per thread, and goroutines move between threads. Each call therefore
// pushes the context, does its work and pops the context in one crossing into C, during which the
// goroutine stays on its thread. No goroutine must be locked to its thread, and the context that
// another library made current on that thread is current again afterwards.
//
// # Copies
//
// Several of CUDA's synchronous copies return before the bytes are in place: those between two places
// of the GPU, and those from host memory that is not pinned. This package queues every copy on a
// stream and synchronizes the stream. A copy that is reported as done is done.
//
// Each copy by a copy engine takes a few microseconds. A kernel therefore does the small copies of a batch of
// requests: eight or more in a row of at most 256 KiB each, at addresses that are multiples of 16, between
// memory of Alloc and of Pin. The first such batch compiles the kernel, which takes about 0.2 s. The kernel
// needs free multiprocessors, so it waits for a kernel of another library that occupies the whole GPU.
//
// # Failure
//
// Errors have CUDA's name and text ([Error]). After [ErrDeviceLost] CUDA refuses everything. Free and
// Close then still release what this process holds, and report the loss once.
package cuda
