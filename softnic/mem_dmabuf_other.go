//go:build !linux

package softnic

import (
	"fmt"

	"ibverbx/verbs"
)

// dmaBufs is the dma-buf registration capability. Only Linux supports it.
const dmaBufs = verbs.Capabilities(0)

func mapDMABuf(int, uint64, uint64, bool) ([]byte, func(), error) {
	return nil, nil, fmt.Errorf("%w: only Linux has dma-bufs", verbs.ErrNotSupported)
}
