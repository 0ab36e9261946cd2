package softnic

import (
	"os"

	"ibverbx/verbs"
)

// registerDMABuf is PD.RegisterDMABuf with the lock held. The region is a mapping of its own, so fd may be
// closed afterwards. The rules are those of the kernel (uverbs, REG_DMABUF_MR).
func (d *pd) registerDMABuf(fd int, offset, length, iova uint64, access verbs.Access) (verbs.MR, error) {
	if err := checkAccess(access); err != nil {
		return nil, err
	}
	switch page := uint64(os.Getpagesize()); {
	case length == 0:
		return nil, verbs.Invalidf("no bytes of the dma-buf")
	case offset+length < offset || iova+length < iova:
		return nil, verbs.Invalidf("%d bytes at %d, with the iova %#x, exceed 64 bits", length, offset, iova)
	case offset%page != iova%page:
		return nil, verbs.Invalidf("the offset %#x and the iova %#x have different places in a page of %d bytes", offset, iova, page)
	}
	b, unmap, err := mapDMABuf(fd, offset, length, access&verbs.AccessLocalWrite != 0)
	if err != nil {
		return nil, err
	}
	m := &mr{pd: d, addr: iova, length: length, access: access, bytes: b, release: unmap}
	if err := m.enlist(); err != nil {
		return nil, err
	}
	return m, nil
}
