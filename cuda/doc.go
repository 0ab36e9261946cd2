// Package cuda provides NVIDIA GPU memory for RDMA: it allocates GPU memory, adopts other libraries'
// memory, copies it, and exports it to NICs and other processes.
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
// CUDA, its headers or a GPU. Without a driver, [Load] and [Open] return [ErrNoDriver], which wraps
// verbs.ErrNotSupported and names the reason. The same holds without cgo, and on systems other than
// 64-bit Linux.
//
// # Concurrency
//
// All types are safe for concurrent use. CUDA has a current context per thread, and goroutines move
// between threads. Each call therefore pushes the context, does its work and pops the context in one
// crossing into C, during which the goroutine stays on its thread. Callers need not lock goroutines to
// threads, and another library's current context on that thread is restored.
//
// # Copies
//
// Copies enter in [GPU.Copy] and [GPU.Start], which verbs.Memory and software NICs call, or on a [Stream].
// stream.go queues them, and the shim passes them to CUDA.
//
// Several of CUDA's synchronous copies return before the bytes are in place: copies within a GPU and
// copies from unpinned host memory. This package queues every copy on a stream, and GPU.Copy
// synchronizes the stream.
//
// Each copy by a copy engine takes a few microseconds. A kernel therefore executes the small copies of a
// batch of requests: eight or more in a row of at most 256 KiB each, at addresses that are multiples of
// 16, between memory from Alloc and Pin. The first such batch compiles the kernel, which takes about 0.2
// s. The kernel needs free multiprocessors, so it waits for another library's kernel that occupies the
// whole GPU.
//
// # Failure
//
// Errors carry CUDA's name and text ([Error]). After [ErrDeviceLost] CUDA rejects all further work. Free
// and Close then still release this process's resources, and report the loss once.
//
// # Changes
//
// docs/api.md lists the lasting API. Unexported code may change freely while the tests and make test-gpu
// pass. The shim uses only symbols exported by libcuda; testdata/fakecuda.c must implement each new one.
package cuda
