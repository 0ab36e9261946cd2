package bootstrap

import (
	"errors"
	"fmt"
	"io"
	"os"
)

// maxKeyFile bounds the file of a private key, in bytes.
const maxKeyFile = 64 << 10

// readSecret reads a file that only its owner may read, at most limit bytes of it. The mode is that
// of the open file, so another file of the same name cannot take its place in between.
func readSecret(name string, limit int) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil {
		err = private(name, info)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	b, err := io.ReadAll(io.LimitReader(f, int64(limit)))
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, err // part of a token would be a different token
	}
	return b, nil
}

// private refuses a file that users other than its owner can read or change, and says how to fix it.
func private(name string, info os.FileInfo) error {
	bits, fix := exposed(info)
	if info.IsDir() || info.Mode().Perm()&bits == 0 {
		return nil // reading a directory has an error of its own
	}
	return fmt.Errorf("%s can be read or changed by other users (mode %04o): run chmod %s %s", name, info.Mode().Perm(), fix, name)
}
