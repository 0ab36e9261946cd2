//go:build !heapmem

package softnic_test

// heapMemory says that memory for NICs is on the Go heap, where the race detector sees it.
const heapMemory = false
