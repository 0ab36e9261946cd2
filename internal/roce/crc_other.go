//go:build !amd64

package roce

// wide is false: this architecture only uses hash/crc32 and short.
const wide = false

// foldMin is unused here.
const foldMin = 0

func foldLong(uint32, []byte) uint32 { return 0 }

func copyLong(uint32, []byte, []byte) uint32 { return 0 }
