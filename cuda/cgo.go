//go:build linux && cgo && !386 && !arm && !mips && !mipsle

package cuda

// #cgo CFLAGS: -O2 -Wall
// #cgo LDFLAGS: -ldl
// #include <stdlib.h>
// #include "shim.h"
import "C"

import "unsafe"

// library holds the functions of libcuda.
type library C.struct_library

func (l *library) c() *C.struct_library { return (*C.struct_library)(l) }

// result converts an outcome.
func result(o C.struct_outcome) outcome {
	if o.code == 0 {
		return outcome{}
	}
	return outcome{code: int(o.code), call: C.GoString(o.call)}
}

// cLoad opens a library. The text is the dynamic linker's message or the missing symbol.
func cLoad(path string) (lib *library, text string, res loadResult) {
	p := C.CString(path)
	defer C.free(unsafe.Pointer(p))
	var buf [512]C.char
	lib = new(library)
	switch C.gpu_load(p, lib.c(), &buf[0], C.size_t(len(buf))) {
	case C.GPU_LOADED:
		return lib, "", loaded
	case C.GPU_OLD_LIBRARY:
		return nil, C.GoString(&buf[0]), oldLibrary
	}
	return nil, C.GoString(&buf[0]), noLibrary
}

// cStart initializes the driver and returns its version and the number of GPUs.
func cStart(l *library) (version, count int, o outcome) {
	var v, n C.int
	o = result(C.gpu_start(l.c(), &v, &n))
	return int(v), int(n), o
}

// cExplain returns CUDA's name and text for a code, or "".
func cExplain(l *library, code int) (name, text string) {
	var n, t *C.char
	C.gpu_explain(l.c(), C.int(code), &n, &t)
	return C.GoString(n), C.GoString(t)
}

func cDescribe(l *library, ordinal int) (d deviceInfo, o outcome) {
	var out C.struct_gpu_device
	if o = result(C.gpu_describe(l.c(), C.int(ordinal), &out)); o.code != 0 {
		return d, o
	}
	return deviceInfo{
		name: C.GoString(&out.name[0]), pci: C.GoString(&out.pci[0]), bytes: uint64(out.bytes),
		major: int(out.major), minor: int(out.minor), dmaBuf: out.dmabuf != 0, rdma: out.rdma != 0,
	}, o
}

func cRetain(l *library, ordinal int) (context uintptr, device int, o outcome) {
	var c C.uintptr_t
	var d C.int
	o = result(C.gpu_retain(l.c(), C.int(ordinal), &c, &d))
	return uintptr(c), int(d), o
}

func cRelease(l *library, device int) outcome { return result(C.gpu_release(l.c(), C.int(device))) }

func cAlloc(g *GPU, size int) (addr uint64, o outcome) {
	var a C.uint64_t
	o = result(C.gpu_alloc(g.driver.lib.c(), C.uintptr_t(g.context), C.size_t(size), &a))
	return uint64(a), o
}

func cFree(g *GPU, addr uint64) outcome {
	return result(C.gpu_free(g.driver.lib.c(), C.uintptr_t(g.context), C.uint64_t(addr)))
}

// cRange returns the allocation that contains an address.
func cRange(g *GPU, addr uint64) (base, size uint64, o outcome) {
	var b C.uint64_t
	var n C.size_t
	o = result(C.gpu_range(g.driver.lib.c(), C.uintptr_t(g.context), C.uint64_t(addr), &b, &n))
	return uint64(b), uint64(n), o
}

// cKind returns the attributes of a pointer.
func cKind(g *GPU, addr uint64) (k pointerKind, o outcome) {
	for _, ask := range [...]struct {
		attribute C.int
		to        *int
	}{{C.POINTER_MEMORY_TYPE, &k.memoryType}, {C.POINTER_IS_MANAGED, &k.managed}, {C.POINTER_DEVICE_ORDINAL, &k.ordinal}} {
		var v C.int32_t
		if o = result(C.gpu_attribute(g.driver.lib.c(), C.uintptr_t(g.context), ask.attribute, C.uint64_t(addr), &v)); o.code != 0 {
			return k, o
		}
		*ask.to = int(v)
	}
	return k, o
}

func cPin(g *GPU, host uint64, size int) outcome {
	return result(C.gpu_pin(g.driver.lib.c(), C.uintptr_t(g.context), C.uintptr_t(host), C.size_t(size)))
}

func cUnpin(g *GPU, host uint64) outcome {
	return result(C.gpu_unpin(g.driver.lib.c(), C.uintptr_t(g.context), C.uintptr_t(host)))
}

func cStream(g *GPU) (stream uintptr, o outcome) {
	var s C.uintptr_t
	o = result(C.gpu_stream(g.driver.lib.c(), C.uintptr_t(g.context), &s))
	return uintptr(s), o
}

// cCopy queues a copy. Host memory is passed by its address, because it is used after the call. The stream
// keeps it alive.
func cCopy(g *GPU, d direction, to, from uint64, n int, stream uintptr) outcome {
	return result(C.gpu_copy(g.driver.lib.c(), C.uintptr_t(g.context), C.int(d), C.uint64_t(to), C.uint64_t(from), C.size_t(n), C.uintptr_t(stream)))
}

// cKernel loads a kernel from its PTX.
func cKernel(g *GPU, text, name string) (module, function uintptr, o outcome) {
	t, n := C.CString(text), C.CString(name)
	defer C.free(unsafe.Pointer(t))
	defer C.free(unsafe.Pointer(n))
	var m, f C.uintptr_t
	o = result(C.gpu_kernel(g.driver.lib.c(), C.uintptr_t(g.context), C.int(g.device), t, n, &m, &f))
	return uintptr(m), uintptr(f), o
}

// cLaunch queues a kernel with one thread group for each of n entries of a list.
func cLaunch(g *GPU, function uintptr, list uint64, n int, stream uintptr) outcome {
	return result(C.gpu_launch(g.driver.lib.c(), C.uintptr_t(g.context), C.uintptr_t(function), C.uint64_t(list), C.uint(n), C.uintptr_t(stream)))
}

func cUnload(g *GPU, module uintptr) outcome {
	return result(C.gpu_unload(g.driver.lib.c(), C.uintptr_t(g.context), C.uintptr_t(module)))
}

func cSynchronize(g *GPU, stream uintptr) outcome {
	return result(C.gpu_synchronize(g.driver.lib.c(), C.uintptr_t(g.context), C.uintptr_t(stream)))
}

func cDestroy(g *GPU, stream uintptr) outcome {
	return result(C.gpu_destroy(g.driver.lib.c(), C.uintptr_t(g.context), C.uintptr_t(stream)))
}

func cDMABuf(g *GPU, addr, size uint64) (fd int, o outcome) {
	var d C.int
	o = result(C.gpu_dmabuf(g.driver.lib.c(), C.uintptr_t(g.context), C.uint64_t(addr), C.size_t(size), &d))
	return int(d), o
}

func cIPCGet(g *GPU, addr uint64) (handle [64]byte, o outcome) {
	var h C.struct_ipc_handle
	o = result(C.gpu_ipc_get(g.driver.lib.c(), C.uintptr_t(g.context), C.uint64_t(addr), &h))
	return *(*[64]byte)(unsafe.Pointer(&h)), o
}

func cIPCOpen(g *GPU, handle [64]byte) (addr uint64, o outcome) {
	var a C.uint64_t
	h := *(*C.struct_ipc_handle)(unsafe.Pointer(&handle))
	o = result(C.gpu_ipc_open(g.driver.lib.c(), C.uintptr_t(g.context), &h, &a))
	return uint64(a), o
}

func cIPCClose(g *GPU, addr uint64) outcome {
	return result(C.gpu_ipc_close(g.driver.lib.c(), C.uintptr_t(g.context), C.uint64_t(addr)))
}
