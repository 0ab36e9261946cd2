//go:build !heapmem

package softnic_test

// heapMemory reports whether NIC memory is on the Go heap, where the race detector sees it.
const heapMemory = false
