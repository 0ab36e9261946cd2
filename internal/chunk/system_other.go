//go:build !unix

package chunk

import (
	"errors"
	"io/fs"
	"os"
)

const openNoWait = 0

var errLocked = errors.New("locked")

func lock(*os.File) error { return nil }

func isSparse(fs.FileInfo) bool { return false }

func tryLock(*os.File) bool { return false }
