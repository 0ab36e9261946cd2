// Package dropin runs unmodified RDMA programs on software NICs. It implements `ibverbx run`.
//
// A program finds its NICs through libibverbs.so.1. The drop-in is a library of that name whose devices
// are softnics:
//
//	shim/    the ABI of libibverbs in C. It builds against the headers of the installed rdma-core.
//	preload/ additions for a preloaded library: signal handlers, and the files that a kernel with RDMA has
//	core/    softnic behind the functions of shim/abi.h, as a shared library with a Go runtime
//	internal/cm the connection manager behind /dev/infiniband/rdma_cm, for the installed librdmacm
//
// The shim is preloaded, so it also satisfies dlopen("libibverbs.so.1"). It loads the core at the first
// ibv_get_device_list. Shells and launchers that inherit LD_PRELOAD therefore carry no Go runtime.
//
// [Find] returns the library: an installed one, a cached one, or a new build. [Options] configures the
// software NICs and travels in environment variables. To run a program, pass [Library.Env] and
// [Options.Env] in its environment.
//
// The drop-in does not use a bootstrap, so its packets are plain RoCE v2: neither encrypted nor
// authenticated. See docs/dropin.md.
//
// An ibv_ call enters in shim/, calls core/ through shim/abi.h, and leaves as a call to a softnic. Only
// the ABI of libibverbs and the documented variables and options are fixed.
package dropin
