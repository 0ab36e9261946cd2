//go:build unix && !linux && !heapmem

package verbs

func mapHuge(int, int, int) ([]byte, error) { return nil, ErrNotSupported }

func adviseHuge([]byte) {}
