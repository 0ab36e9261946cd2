//go:build !linux

package chunk

import (
	"errors"
	"os"
)

func isHole(*os.File, int64, int64) bool { return false }

func punch(*os.File, int64, int64) error { return errors.ErrUnsupported }
