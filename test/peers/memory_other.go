//go:build !linux

package main

import (
	"errors"
	"os"
)

func peakMemory(*os.ProcessState) (float64, error) { return 0, errors.ErrUnsupported }
