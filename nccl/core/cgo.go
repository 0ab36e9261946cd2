//go:build linux && cgo && (amd64 || arm64)

package main

// #cgo CFLAGS: -I${SRCDIR}/../shim
// #include <stdlib.h>
// #include "seam.h"
//
// static inline void ibx_nccl_log(void *log, int32_t level, const char *line) { ((ibx_log)log)(level, line); }
import "C"

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"unsafe"

	"ibverbx/bootstrap"
	"ibverbx/nccl/internal/transport"
	"ibverbx/verbs"
)

// staticAssertZero does not compile unless its argument, a constant, is 0.
type staticAssertZero [1]struct{}

// The structures of seam.h have the same layout in both languages.
var (
	_ = staticAssertZero{}[unsafe.Sizeof(transport.Request{})-C.sizeof_struct_ibx_request]
	_ = staticAssertZero{}[unsafe.Offsetof(transport.Request{}.Result)-unsafe.Offsetof(C.struct_ibx_request{}.result)]
	_ = staticAssertZero{}[unsafe.Offsetof(transport.Request{}.Size)-unsafe.Offsetof(C.struct_ibx_request{}.size)]
	_ = staticAssertZero{}[unsafe.Offsetof(transport.Request{}.Owner)-unsafe.Offsetof(C.struct_ibx_request{}.owner)]
	_ = staticAssertZero{}[unsafe.Sizeof(transport.Words{})-C.sizeof_struct_ibx_words]
	_ = staticAssertZero{}[unsafe.Offsetof(transport.Words{}.Result)-unsafe.Offsetof(C.struct_ibx_words{}.result)]
	_ = staticAssertZero{}[unsafe.Offsetof(transport.Words{}.Worker)-unsafe.Offsetof(C.struct_ibx_words{}.worker)]
	_ = staticAssertZero{}[unsafe.Offsetof(transport.Words{}.Requests)-unsafe.Offsetof(C.struct_ibx_words{}.requests)]
	_ = staticAssertZero{}[transport.Depth-C.IBX_DEPTH]
	_ = staticAssertZero{}[transport.HandleSize-C.IBX_HANDLE]
	_ = staticAssertZero{}[transport.MaxWorkers-C.IBX_WORKERS]
	_ = staticAssertZero{}[unsafe.Sizeof(atomic.Uint32{})-C.sizeof_uint32_t]
	_ = staticAssertZero{}[transport.RequestBusy-C.IBX_BUSY]
	_ = staticAssertZero{}[transport.RequestDone-C.IBX_DONE]
	_ = staticAssertZero{}[transport.Again-C.IBX_AGAIN]
	_ = staticAssertZero{}[transport.Gone-C.IBX_GONE]
)

// process is the plugin of this process. C calls without a receiver.
var process = &library{}

type library struct {
	plugin *transport.Plugin
	log    *slog.Logger
}

const (
	// maxProcs limits the threads that run Go code, as does half the number of cores: NCCL's polling threads and the GPU's host threads need
	// the cores. With as many as cores, Go's idle threads preempted the polling ones, and round trips took several times as long on two cores.
	maxProcs = 2 * transport.MaxWorkers
	// coresPerPart is the number of cores per part.
	coresPerPart = 4
)

// allProcs is what Go would use. start may be called again, and must not take half of a half.
var allProcs = runtime.GOMAXPROCS(0)

// gcPercent trades collections for memory. Only establishing connections allocates.
const gcPercent = 25

// start opens the NICs. C calls it once, or again after an error. parts is 0 except in tests.
func (l *library) start(log unsafe.Pointer, runs []atomic.Uint32, parts int) error {
	runtime.GOMAXPROCS(max(1, min(maxProcs, allProcs/2)))
	debug.SetGCPercent(gcPercent)
	l.log = slog.New(transport.Handler(func(warn bool, line string) {
		level := C.int32_t(0)
		if warn {
			level = 1
		}
		text := C.CString(line)
		C.ibx_nccl_log(log, level, text)
		C.free(unsafe.Pointer(text))
	}))
	slog.SetDefault(l.log) // for what packages log about the environment
	o, err := transport.ReadEnv(os.LookupEnv)
	if err != nil {
		return err
	}
	o.Runs, o.Parts = runs, cmp.Or(parts, allProcs/coresPerPart)
	l.plugin, err = transport.Start(o, l.log)
	return err
}

// resultOf translates an error, and logs it.
func (l *library) resultOf(what string, err error) int32 {
	switch err {
	case nil:
		return int32(transport.OK)
	case transport.ErrGone: //nolint:errorlint // a wrapped one means that a connection has failed
		return int32(transport.Gone)
	}
	l.log.Warn(what, slog.Any("cause", err))
	switch {
	case errors.Is(err, verbs.ErrInvalid):
		return int32(transport.InternalError)
	case errors.Is(err, verbs.ErrDeviceFatal), errors.Is(err, verbs.ErrLimit), errors.Is(err, bootstrap.ErrConfig):
		return int32(transport.SystemError)
	}
	return int32(transport.RemoteError)
}

// number stores the number of a connection, 0 if there is none yet.
func (l *library) number(out *uint32, c *transport.Comm, err error) int32 {
	switch {
	case err != nil:
		return l.resultOf("cannot connect", err)
	case c == nil:
		return int32(transport.Again)
	}
	*out = c.Number()
	return int32(transport.OK)
}

// errUnknown means that C passed a number without an object.
var errUnknown = fmt.Errorf("%w: no such object", verbs.ErrInvalid)

//export ibx_nccl_seam
func ibx_nccl_seam() int32 { return C.IBX_SEAM }

//export ibx_nccl_start
func ibx_nccl_start(log unsafe.Pointer, runs *uint32, parts int32) int32 {
	words := unsafe.Slice((*atomic.Uint32)(unsafe.Pointer(runs)), transport.MaxWorkers)
	return process.resultOf("not in use", process.start(log, words, int(parts)))
}

//export ibx_nccl_finish
func ibx_nccl_finish() int32 {
	process.plugin.Finish(os.Stderr)
	return 0
}

//export ibx_nccl_describe
func ibx_nccl_describe(out unsafe.Pointer) int32 {
	d, p := (*C.struct_ibx_properties)(out), process.plugin
	d.rails, d.speed, d.software = C.int32_t(p.Rails()), C.int32_t(p.Speed()), 0
	if p.Software() {
		d.software = 1
	}
	fill(d.pci_path[:], p.PCIPath())
	fill(d.description[:], p.Describe())
	return 0
}

// fill writes a terminated string, cut if it is too long.
func fill(to []C.char, s string) {
	n := min(len(s), len(to)-1)
	for i := range n {
		to[i] = C.char(s[i])
	}
	to[n] = 0
}

//export ibx_nccl_open
func ibx_nccl_open(out *uint32) int32 {
	_, n, err := process.plugin.Open()
	*out = n
	return process.resultOf("cannot open a communicator", err)
}

//export ibx_nccl_close_shard
func ibx_nccl_close_shard(n uint32) int32 {
	if s := process.plugin.Shard(n); s != nil {
		s.Close()
	}
	return 0
}

//export ibx_nccl_listen
func ibx_nccl_listen(n uint32, handle unsafe.Pointer, out *uint32) int32 {
	s := process.plugin.Shard(n)
	if s == nil {
		return int32(transport.Gone)
	}
	number, err := s.Listen(unsafe.Slice((*byte)(handle), transport.HandleSize))
	*out = number
	return process.resultOf("cannot listen", err)
}

//export ibx_nccl_close_listen
func ibx_nccl_close_listen(n uint32) int32 {
	process.plugin.CloseListener(n)
	return 0
}

//export ibx_nccl_connect
func ibx_nccl_connect(n uint32, handle unsafe.Pointer, out *uint32) int32 {
	s := process.plugin.Shard(n)
	if s == nil {
		return int32(transport.Gone)
	}
	c, err := s.Connect(unsafe.Slice((*byte)(handle), transport.HandleSize))
	return process.number(out, c, err)
}

//export ibx_nccl_accept
func ibx_nccl_accept(n uint32, out *uint32) int32 {
	l := process.plugin.Listener(n)
	if l == nil {
		return process.resultOf("accept", errUnknown)
	}
	c, err := l.Accept()
	return process.number(out, c, err)
}

//export ibx_nccl_adopt
func ibx_nccl_adopt(n uint32, words unsafe.Pointer) int32 {
	c := process.plugin.Comm(n)
	if c == nil {
		return process.resultOf("adopt", errUnknown)
	}
	c.Adopt((*transport.Words)(words))
	return 0
}

//export ibx_nccl_close
func ibx_nccl_close(n uint32) int32 {
	if c := process.plugin.Comm(n); c != nil {
		c.Close()
	}
	return 0
}

//export ibx_nccl_reg
func ibx_nccl_reg(n uint32, data unsafe.Pointer, size uint64, out *uint32) int32 {
	c := process.plugin.Comm(n)
	if c == nil || data == nil || size == 0 || size > 1<<47 {
		return process.resultOf("register memory", errUnknown)
	}
	number, err := c.Register(unsafe.Slice((*byte)(data), size))
	*out = number
	return process.resultOf("cannot register memory", err)
}

//export ibx_nccl_dereg
func ibx_nccl_dereg(n uint32) int32 {
	return process.resultOf("cannot deregister memory", process.plugin.Deregister(n))
}

//export ibx_nccl_isend
func ibx_nccl_isend(n uint32, data unsafe.Pointer, size uint64, region, request uint32) int32 {
	c := process.plugin.Comm(n)
	if c == nil {
		return int32(transport.InternalError)
	}
	return int32(c.Send(uint64(uintptr(data)), size, process.plugin.Region(region), int(request)))
}

//export ibx_nccl_irecv
func ibx_nccl_irecv(n uint32, data unsafe.Pointer, size uint64, region, request uint32) int32 {
	c := process.plugin.Comm(n)
	if c == nil {
		return int32(transport.InternalError)
	}
	return int32(c.Recv(uint64(uintptr(data)), size, process.plugin.Region(region), int(request)))
}

//export ibx_nccl_poll
func ibx_nccl_poll(n uint32) int32 {
	s := process.plugin.Shard(n)
	if s == nil {
		return int32(transport.Gone)
	}
	s.Poll()
	return 0
}

//export ibx_nccl_rail
func ibx_nccl_rail(rail, up int32) int32 {
	return process.resultOf("rail", process.plugin.SetRail(int(rail), up != 0))
}
