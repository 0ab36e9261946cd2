package cuda

import (
	"cmp"
	"slices"

	"ibverbx/verbs"
)

const (
	// groupBytes is the maximum size of a copy by one thread group.
	groupBytes = 64 << 10
	// maxKernelCopy is the maximum size of a copy by the kernel, in bytes. A copy engine is as fast for longer ones.
	maxKernelCopy = 4 * groupBytes
	// minKernelCopies is the minimum number of copies that justify a launch. After another launch, any number does.
	minKernelCopies = 8
	// descBytes is the size of a descriptor in the kernel's list.
	descBytes = 24
	// maxDescs is the capacity of the list: enough for maxQueued copies of maxKernelCopy bytes.
	maxDescs = maxQueued * maxKernelCopy / groupBytes
)

// kernelName and kernelText are the kernel, in PTX, which the driver compiles for its GPU. Each thread group
// copies one descriptor of the list: 64 bytes per thread and iteration, 16 bytes for the rest, so that few groups
// keep many bytes in flight. Then each of the first threads copies one of the remaining bytes. Addresses are
// multiples of 16.
const (
	kernelName = "copy_blocks"
	kernelText = `.version 7.0
.target sm_70
.address_size 64
.visible .entry copy_blocks(.param .u64 list)
{
.reg .b64 %rd<20>;
.reg .b32 %r<20>;
.reg .b16 %h<2>;
.reg .pred %p<2>;
ld.param.u64 %rd1, [list];
mov.u32 %r1, %ctaid.x;
mul.wide.u32 %rd2, %r1, 24;
add.s64 %rd1, %rd1, %rd2;
ld.global.u64 %rd3, [%rd1];
ld.global.u64 %rd4, [%rd1+8];
ld.global.u64 %rd5, [%rd1+16];
mov.u32 %r2, %tid.x;
mov.u32 %r3, %ntid.x;
mul.wide.u32 %rd6, %r2, 16;
mul.wide.u32 %rd7, %r3, 16;
and.b64 %rd10, %rd5, -16;
shl.b64 %rd12, %rd7, 1;
add.s64 %rd13, %rd12, %rd7;
shl.b64 %rd14, %rd7, 2;
FOUR:
add.s64 %rd15, %rd6, %rd13;
setp.ge.u64 %p1, %rd15, %rd10;
@%p1 bra LOOP;
add.s64 %rd8, %rd4, %rd6;
add.s64 %rd9, %rd3, %rd6;
add.s64 %rd15, %rd8, %rd7;
add.s64 %rd16, %rd8, %rd12;
add.s64 %rd17, %rd8, %rd13;
ld.global.v4.u32 {%r4, %r5, %r6, %r7}, [%rd8];
ld.global.v4.u32 {%r8, %r9, %r10, %r11}, [%rd15];
ld.global.v4.u32 {%r12, %r13, %r14, %r15}, [%rd16];
ld.global.v4.u32 {%r16, %r17, %r18, %r19}, [%rd17];
add.s64 %rd15, %rd9, %rd7;
add.s64 %rd16, %rd9, %rd12;
add.s64 %rd17, %rd9, %rd13;
st.global.v4.u32 [%rd9], {%r4, %r5, %r6, %r7};
st.global.v4.u32 [%rd15], {%r8, %r9, %r10, %r11};
st.global.v4.u32 [%rd16], {%r12, %r13, %r14, %r15};
st.global.v4.u32 [%rd17], {%r16, %r17, %r18, %r19};
add.s64 %rd6, %rd6, %rd14;
bra FOUR;
LOOP:
setp.ge.u64 %p1, %rd6, %rd10;
@%p1 bra TAIL;
add.s64 %rd8, %rd4, %rd6;
add.s64 %rd9, %rd3, %rd6;
ld.global.v4.u32 {%r4, %r5, %r6, %r7}, [%rd8];
st.global.v4.u32 [%rd9], {%r4, %r5, %r6, %r7};
add.s64 %rd6, %rd6, %rd7;
bra LOOP;
TAIL:
cvt.u64.u32 %rd11, %r2;
add.s64 %rd10, %rd10, %rd11;
setp.ge.u64 %p1, %rd10, %rd5;
@%p1 bra END;
add.s64 %rd8, %rd4, %rd10;
add.s64 %rd9, %rd3, %rd10;
ld.global.u8 %h1, [%rd8];
st.global.u8 [%rd9], %h1;
END:
ret;
}
`
)

// span is a range of addresses.
type span struct{ addr, end uint64 }

// contains reports whether n bytes are in the range.
func (s *span) contains(addr, n uint64) bool {
	off, size := addr-s.addr, s.end-s.addr
	return off < size && n <= size-off
}

// copyDesc is a copy by a thread group, as the kernel reads it.
type copyDesc struct{ to, from, n uint64 }

// copyKernel executes many small copies with one launch. A copy engine takes about 4 us for each. The kernel
// only accesses memory known to be mapped for its GPU: an invalid address in a kernel makes the GPU unusable for
// the process. The stream's lock guards it.
type copyKernel struct {
	// spans are the ranges of the GPU's allocations, opened memory of other processes and pinned
	// host memory, in ascending order. Opened memory stays mapped when its process frees it or
	// exits (TestGPUOpenedOutlives).
	spans []span
	// batch holds the descriptors of the next launch. Its capacity is reused.
	batch []copyDesc
	// tried is set once loading the kernel was attempted.
	tried bool
	// module and function are the loaded kernel, 0 if it is not loaded.
	module, function uintptr
	// list is pinned memory with the descriptors of launches; nil if the kernel is not loaded.
	list *verbs.Memory
	// used is the number of descriptors in it since the last synchronization.
	used int
}

func compareSpan(s span, addr uint64) int { return cmp.Compare(s.addr, addr) }

// allowKernel lets the kernel use mapped memory.
func (s *Stream) allowKernel(addr uint64, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i, _ := slices.BinarySearchFunc(s.kernel.spans, addr, compareSpan)
	s.kernel.spans = slices.Insert(s.kernel.spans, i, span{addr, addr + uint64(n)})
}

// forbid undoes allowKernel; other memory is ignored. The stream is locked.
func (b *copyKernel) forbid(addr uint64) {
	if i, ok := slices.BinarySearchFunc(b.spans, addr, compareSpan); ok {
		b.spans = slices.Delete(b.spans, i, i+1)
	}
}

// isMapped reports whether the kernel may use n bytes, and sets s to the memory that contains them.
func (b *copyKernel) isMapped(s *span, addr, n uint64) bool {
	i, exact := slices.BinarySearchFunc(b.spans, addr, compareSpan)
	if !exact {
		i--
	}
	if i < 0 {
		return false
	}
	*s = b.spans[i]
	return s.contains(addr, n)
}

// collect fills batch with the descriptors of the first copies that the kernel may execute, and returns their
// number. parallel is set if they can run concurrently: no destination overlaps another one or a source.
func (b *copyKernel) collect(copies []verbs.DeviceCopy) (n int, parallel bool) {
	b.batch = b.batch[:0]
	if b.tried && b.function == 0 {
		return 0, false
	}
	var near [2]span // the memory of the last destination and source
	from, end, ascending := span{addr: ^uint64(0)}, uint64(0), true
	for n = 0; n < min(len(copies), maxQueued); n++ {
		c := &copies[n]
		k := copyDesc{c.To, c.From, c.Len}
		if k.to == 0 {
			k.to = hostAddr(c.Host)
		}
		if k.from == 0 {
			k.from = hostAddr(c.Host)
		}
		if k.n-1 >= maxKernelCopy || (k.to|k.from)%16 != 0 || !near[0].contains(k.to, k.n) && !b.isMapped(&near[0], k.to, k.n) ||
			!near[1].contains(k.from, k.n) && !b.isMapped(&near[1], k.from, k.n) {
			break
		}
		ascending = ascending && k.to >= end
		end = k.to + k.n
		from.addr, from.end = min(from.addr, k.from), max(from.end, k.from+k.n)
		for ; k.n > groupBytes; k = (copyDesc{k.to + groupBytes, k.from + groupBytes, k.n - groupBytes}) {
			b.batch = append(b.batch, copyDesc{k.to, k.from, groupBytes})
		}
		b.batch = append(b.batch, k)
	}
	return n, (n >= minKernelCopies || n > 0 && b.used > 0) && b.independent(from, ascending)
}

// independent reports whether no destination of the batch overlaps another one or from, which covers all sources.
// It sorts the batch unless ascending is set.
func (b *copyKernel) independent(from span, ascending bool) bool {
	if !ascending {
		slices.SortFunc(b.batch, func(x, y copyDesc) int { return cmp.Compare(x.to, y.to) })
		for i := range b.batch[1:] {
			if b.batch[i+1].to < b.batch[i].to+b.batch[i].n {
				return false
			}
		}
	}
	last := &b.batch[len(b.batch)-1]
	return from.end <= b.batch[0].to || last.to+last.n <= from.addr
}

// launch queues the batch, with the lock held.
func (s *Stream) launch() error {
	b := &s.kernel
	if b.used+len(b.batch) > maxDescs {
		if err := s.synchronize(); err != nil {
			return err
		}
	}
	at := b.used * descBytes
	copy(b.list.Bytes()[at:], descsAsBytes(b.batch))
	err := s.gpu.driver.failed(cLaunch(s.gpu, b.function, b.list.Addr()+uint64(at), len(b.batch), s.stream))
	if err == nil {
		b.used += len(b.batch)
		s.busy = true
	}
	return err
}

// loadKernel loads the kernel on the first call, and reports whether it is loaded. Without it, copies run one by
// one.
func (s *Stream) loadKernel() bool {
	b := &s.kernel
	if b.tried {
		return b.function != 0
	}
	b.tried = true
	list, err := verbs.AllocMemory(maxDescs*descBytes, nil)
	if err != nil {
		return false
	}
	if cPin(s.gpu, list.Addr(), list.Len()).code != 0 {
		_ = list.Free()
		return false
	}
	b.list = list
	var o outcome
	if b.module, b.function, o = cKernel(s.gpu, kernelText, kernelName); o.code != 0 {
		b.function = 0
		_ = s.unloadKernel() // Close releases the rest
	}
	return b.function != 0
}

// unloadKernel releases the kernel and its list. The stream must be empty. A lost GPU has lost the kernel too.
func (s *Stream) unloadKernel() error {
	b := &s.kernel
	if b.function != 0 {
		if err := s.gpu.driver.failed(cUnload(s.gpu, b.module)); err != nil && !lost(err) {
			return err
		}
		b.function = 0
	}
	if b.list == nil {
		return nil
	}
	if err := s.gpu.driver.failed(cUnpin(s.gpu, b.list.Addr())); err != nil && !lost(err) {
		return err
	}
	list := b.list
	b.list = nil
	return list.Free()
}
