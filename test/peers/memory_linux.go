package main

import (
	"errors"
	"os"
	"syscall"
)

// peakMemory returns the peak resident memory of an exited process in MiB.
func peakMemory(p *os.ProcessState) (float64, error) {
	usage, ok := p.SysUsage().(*syscall.Rusage)
	if !ok {
		return 0, errors.New("the system does not report the memory of processes")
	}
	return float64(usage.Maxrss) / kib, nil
}
