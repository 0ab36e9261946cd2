package cuda

import (
	"cmp"
	"encoding/binary"
	"slices"

	"ibverbx/verbs"
)

const (
	// pieceSize is the most that one group of threads copies, in bytes.
	pieceSize = 64 << 10
	// maxBlock is the longest copy that the kernel does. A copy engine does longer ones as fast.
	maxBlock = 4 * pieceSize
	// minBlocks is the smallest number of copies that are worth a launch.
	minBlocks = 8
	// entrySize is the size of an entry of the kernel's list: destination, source and length, of 8 bytes each.
	entrySize = 24
	// maxEntries is the length of the list. It has room for the most copies of a launch at their longest.
	maxEntries = maxQueued * maxBlock / pieceSize
)

// kernelName and kernelText are the kernel, in PTX, which the driver compiles for its GPU. Each group of
// threads copies one entry of the list, 16 bytes per thread and turn. Then each of the first threads copies
// one of the remaining bytes. Addresses are multiples of 16.
const (
	kernelName = "copy_blocks"
	kernelText = `.version 7.0
.target sm_70
.address_size 64
.visible .entry copy_blocks(.param .u64 list)
{
.reg .b64 %rd<12>;
.reg .b32 %r<8>;
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

// block is a copy by the kernel.
type block struct{ to, from, n uint64 }

// blocks is the kernel that does many small copies with one launch. A copy engine takes about 4 us for
// each. The kernel touches only memory that is mapped for its GPU for certain, because a wrong address in a
// kernel ends the use of the GPU by the process. The lock of the stream guards it.
type blocks struct {
	// spans are the allocations of the GPU and the host memory that it has pinned, in ascending order.
	spans []span
	// found has the indexes of the spans of the last destination and source.
	found [2]int
	// batch has the copies of the next launch. It is kept for its space.
	batch []block
	// tried says that the kernel was loaded, or could not be.
	tried bool
	// module and function are the loaded kernel, 0 if it is not loaded.
	module, function uintptr
	// list is pinned memory with the entries of launches; nil if the kernel is not loaded.
	list *verbs.Memory
	// used is the number of entries since the last synchronization.
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

// mapped reports whether the kernel may use n bytes. side is 0 for destinations and 1 for sources.
func (b *blocks) mapped(side int, addr, n uint64) bool {
	i := b.found[side]
	if i >= len(b.spans) || addr < b.spans[i].addr || addr >= b.spans[i].end {
		var exact bool
		if i, exact = slices.BinarySearchFunc(b.spans, addr, spanAt); !exact {
			i--
		}
		if i < 0 || addr >= b.spans[i].end {
			return false
		}
		b.found[side] = i
	}
	return n <= b.spans[i].end-addr
}

// gather fills batch with the first copies that the kernel may do, and returns how many there are. apart
// says that they can be done at the same time: no destination overlaps another one or a source.
func (b *blocks) gather(copies []verbs.DeviceCopy) (n int, apart bool) {
	b.batch = b.batch[:0]
	if b.tried && b.function == 0 {
		return 0, false
	}
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
		if k.n-1 >= maxBlock || (k.to|k.from)%16 != 0 || !b.mapped(0, k.to, k.n) || !b.mapped(1, k.from, k.n) {
			break
		}
		ascending = ascending && k.to >= end
		end = k.to + k.n
		from.addr, from.end = min(from.addr, k.from), max(from.end, k.from+k.n)
		b.batch = append(b.batch, k)
	}
	return n, n >= minBlocks && b.apart(from, ascending)
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
	if b.used+len(b.batch)*(maxBlock/pieceSize) > maxEntries {
		if err := s.synchronize(); err != nil {
			return err
		}
	}
	first, n := b.list.Bytes()[b.used*entrySize:], 0
	for i := range b.batch {
		k := &b.batch[i]
		for at := uint64(0); at < k.n; at += pieceSize {
			e := first[n*entrySize:][:entrySize]
			binary.NativeEndian.PutUint64(e, k.to+at)
			binary.NativeEndian.PutUint64(e[8:], k.from+at)
			binary.NativeEndian.PutUint64(e[16:], min(k.n-at, pieceSize))
			n++
		}
	}
	err := s.gpu.driver.failed(cLaunch(s.gpu, b.function, b.list.Addr()+uint64(b.used*entrySize), n, s.stream))
	if err == nil {
		b.used += n
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
	list, err := verbs.AllocMemory(maxEntries*entrySize, nil)
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
