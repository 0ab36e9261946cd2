//go:build !linux || heapmem

package verbs

func mapFile(int) ([]byte, int, error) { return nil, -1, ErrNotSupported }

func unmapFile([]byte, int) error { return ErrNotSupported }
