//go:build !amd64 || race || heapmem

package ntcopy

// The sizes of the amd64 loops, so that the tests try the same lengths everywhere.
const (
	PieceFrom  = pieceFrom
	StreamFrom = streamFrom
	BlockSize  = 16 << 10
	ChunkSize  = 256 << 10
)

// Ways returns the only copy method of this build.
func Ways() map[string]func(dst, src []byte) int {
	return map[string]func(dst, src []byte) int{"builtin": func(dst, src []byte) int { return large(dst, src, 0) }}
}
