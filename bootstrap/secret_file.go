package bootstrap

import (
	"errors"
	"fmt"
	"io"
	"os"
)

// maxKeyFile is the maximum size of a private key file in bytes.
const maxKeyFile = 64 << 10

// readSecret reads up to limit bytes of a file that only its owner can read. It checks the mode of
// the open file, so the file cannot be replaced between check and read.
func readSecret(name string, limit int) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil {
		err = checkMode(name, info)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	b, err := io.ReadAll(io.LimitReader(f, int64(limit)))
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, err // a truncated token would be a different one
	}
	return b, nil
}

// checkMode rejects a file that users other than its owner can read or change. The error includes the fix.
func checkMode(name string, info os.FileInfo) error {
	bits, fix := forbiddenBits(info)
	if info.IsDir() || info.Mode().Perm()&bits == 0 {
		return nil // reading a directory fails anyway
	}
	return fmt.Errorf("%s can be read or changed by other users (mode %04o): run chmod %s %s", name, info.Mode().Perm(), fix, name)
}
