package cuda

import (
	"cmp"
	"slices"

	"ibverbx/verbs"
)

const (
	// pieceSize is the most that one group of threads copies, in bytes.
	pieceSize = 64 << 10
	// maxBlock is the longest copy that the kernel does. A copy engine does longer ones as fast.
	maxBlock = 4 * pieceSize
	// minBlocks is the smallest number of copies that are worth a launch. Behind another launch any number is.
	minBlocks = 8
	// blockSize is the size of a block in the kernel's list, in bytes.
	blockSize = 24
	// maxEntries is the length of the list. It has room for the most copies of a launch at their longest.
	maxEntries = maxQueued * maxBlock / pieceSize
)

// kernelName and kernelText are the kernel, in PTX, which the driver compiles for its GPU. Each group of
// threads copies one entry of the list: 64 bytes per thread and turn, 16 bytes if fewer are left, so that few
// groups have much under way. Then each of the first threads copies one of the remaining bytes. Addresses are
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

// has reports whether n bytes are in the range.
func (s *span) has(addr, n uint64) bool {
	off, size := addr-s.addr, s.end-s.addr
	return off < size && n <= size-off
}

// block is a copy by a group of threads, as the kernel reads it.
type block struct{ to, from, n uint64 }

// blocks is the kernel that does many small copies with one launch. A copy engine takes about 4 us for
// each. The kernel touches only memory that is mapped for its GPU for certain, because a wrong address in a
// kernel ends the use of the GPU by the process. The lock of the stream guards it.
type blocks struct {
	// spans are the allocations of the GPU, memory of other processes that it has open and the host memory that it has pinned, in
	// ascending order. Opened memory stays mapped when its process frees it or ends (TestGPUOpenedOutlives).
	spans []span
	// batch has the blocks of the next launch. It is kept for its space.
	batch []block
	// tried says that the kernel was loaded, or could not be.
	tried bool
	// module and function are the loaded kernel, 0 if it is not loaded.
	module, function uintptr
	// list is pinned memory with the blocks of launches; nil if the kernel is not loaded.
	list *verbs.Memory
	// used is the number of blocks in it since the last synchronization.
	used int
}

func spanAt(s span, addr uint64) int { return cmp.Compare(s.addr, addr) }

// allow lets the kernel use memory that has been mapped.
func (s *Stream) allow(addr uint64, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i, _ := slices.BinarySearchFunc(s.blocks.spans, addr, spanAt)
	s.blocks.spans = slices.Insert(s.blocks.spans, i, span{addr, addr + uint64(n)})
}

// forbid undoes allow; memory that was not allowed is ignored. The stream is locked.
func (b *blocks) forbid(addr uint64) {
	if i, ok := slices.BinarySearchFunc(b.spans, addr, spanAt); ok {
		b.spans = slices.Delete(b.spans, i, i+1)
	}
}

// mapped reports whether the kernel may use n bytes, and sets s to the memory that they are in.
func (b *blocks) mapped(s *span, addr, n uint64) bool {
	i, exact := slices.BinarySearchFunc(b.spans, addr, spanAt)
	if !exact {
		i--
	}
	if i < 0 {
		return false
	}
	*s = b.spans[i]
	return s.has(addr, n)
}

// gather fills batch with the first copies that the kernel may do, in pieces, and returns how many copies they
// are. apart says that they can be done at the same time: no destination overlaps another one or a source.
func (b *blocks) gather(copies []verbs.DeviceCopy) (n int, apart bool) {
	b.batch = b.batch[:0]
	if b.tried && b.function == 0 {
		return 0, false
	}
	var near [2]span // the memory of the last destination and source
	from, end, ascending := span{addr: ^uint64(0)}, uint64(0), true
	for n = 0; n < min(len(copies), maxQueued); n++ {
		c := &copies[n]
		k := block{c.To, c.From, c.Len}
		if k.to == 0 {
			k.to = hostAddr(c.Host)
		}
		if k.from == 0 {
			k.from = hostAddr(c.Host)
		}
		if k.n-1 >= maxBlock || (k.to|k.from)%16 != 0 || !near[0].has(k.to, k.n) && !b.mapped(&near[0], k.to, k.n) ||
			!near[1].has(k.from, k.n) && !b.mapped(&near[1], k.from, k.n) {
			break
		}
		ascending = ascending && k.to >= end
		end = k.to + k.n
		from.addr, from.end = min(from.addr, k.from), max(from.end, k.from+k.n)
		for ; k.n > pieceSize; k = (block{k.to + pieceSize, k.from + pieceSize, k.n - pieceSize}) {
			b.batch = append(b.batch, block{k.to, k.from, pieceSize})
		}
		b.batch = append(b.batch, k)
	}
	return n, (n >= minBlocks || n > 0 && b.used > 0) && b.apart(from, ascending)
}

// apart checks the destinations of the batch, which it sorts if they do not ascend. from has all sources.
func (b *blocks) apart(from span, ascending bool) bool {
	if !ascending {
		slices.SortFunc(b.batch, func(x, y block) int { return cmp.Compare(x.to, y.to) })
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
	b := &s.blocks
	if b.used+len(b.batch) > maxEntries {
		if err := s.synchronize(); err != nil {
			return err
		}
	}
	at := b.used * blockSize
	copy(b.list.Bytes()[at:], blockBytes(b.batch))
	err := s.gpu.driver.failed(cLaunch(s.gpu, b.function, b.list.Addr()+uint64(at), len(b.batch), s.stream))
	if err == nil {
		b.used += len(b.batch)
		s.busy = true
	}
	return err
}

// load loads the kernel if that has not been tried, and reports whether it is there. Drivers and GPUs
// without it copy one by one.
func (s *Stream) load() bool {
	b := &s.blocks
	if b.tried {
		return b.function != 0
	}
	b.tried = true
	list, err := verbs.AllocMemory(maxEntries*blockSize, nil)
	if err != nil {
		return false
	}
	if cPin(s.gpu, list.Addr(), list.Len()).code != 0 {
		_ = list.Free() // nothing uses it
		return false
	}
	b.list = list
	var o outcome
	if b.module, b.function, o = cKernel(s.gpu, kernelText, kernelName); o.code != 0 {
		b.function = 0
		_ = s.unload() // what is left is released by Close
	}
	return b.function != 0
}

// unload releases what load has made. The stream has no copies. A lost GPU has lost the kernel too.
func (s *Stream) unload() error {
	b := &s.blocks
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
