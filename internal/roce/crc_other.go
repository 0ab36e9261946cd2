//go:build !amd64

package roce

// wide says that there is no code for this processor beyond that of hash/crc32.
const wide = false

// foldMin is of no use here.
const foldMin = 0

func foldLong(uint32, []byte) uint32 { return 0 }

func copyLong(uint32, []byte, []byte) uint32 { return 0 }
