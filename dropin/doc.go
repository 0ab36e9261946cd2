// Package dropin runs unmodified RDMA programs on software NICs. It is the machinery of `ibverbx run`.
//
// A program finds its NICs through libibverbs.so.1. The drop-in is a library of that name whose devices are softnics:
//
//	shim/    the ABI of libibverbs in C. It builds against the headers of the installed rdma-core.
//	preload/ what a preloaded library adds: handlers of signals, and the files that a kernel with RDMA has
//	core/    softnic behind the functions of shim/seam.h, as a shared library with a Go runtime
//
// The shim is preloaded, so it also satisfies dlopen("libibverbs.so.1"). It loads the core at the first
// ibv_get_device_list. Shells and launchers that inherit LD_PRELOAD therefore carry no Go runtime.
//
// [Find] returns the library: one that was installed, one from the cache, or a new build. [Options] are what a user
// can set about the software NICs; they travel in environment variables.
//
// Programs that meet through the drop-in have no bootstrap, so their packets are plain RoCE v2: neither encrypted
// nor authenticated. docs/dropin.md has more.
package dropin
