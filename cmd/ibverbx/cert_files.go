package main

import (
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
)

// certFile is a file to be written.
type certFile struct {
	name, kind, what string
	der              []byte
	mode             fs.FileMode
}

// newSerial returns the serial number of a certificate: 127 random bits.
func newSerial() (*big.Int, error) {
	return rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
}

// writeFiles writes all files into dir, which it makes. Without force it writes none if one of
// them exists. With force it removes a file before it writes it, so that neither its mode nor the
// target of a link is kept.
func writeFiles(dir string, files []certFile, force bool) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for _, f := range files {
		path := filepath.Join(dir, f.name)
		_, err := os.Lstat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return err
		case !force:
			return fmt.Errorf("%s exists: use another directory, or --force to replace it", path)
		}
	}
	for _, f := range files {
		path := filepath.Join(dir, f.name)
		if force {
			if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		if err := writeNew(path, f); err != nil {
			return err
		}
	}
	return nil
}

// writeNew writes a file that must not exist.
func writeNew(path string, f certFile) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, f.mode)
	if err != nil {
		return err
	}
	return errors.Join(pem.Encode(file, &pem.Block{Type: f.kind, Bytes: f.der}), file.Close())
}
