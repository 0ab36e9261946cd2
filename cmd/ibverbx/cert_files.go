package main

import (
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
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

func (f *certFile) encode(w io.Writer) error {
	return pem.Encode(w, &pem.Block{Type: f.kind, Bytes: f.der})
}

// newSerial returns the serial number of a certificate: 127 random bits.
func newSerial() (*big.Int, error) {
	return rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
}

// writeFiles writes all files into dir, which it makes. Without force it writes none if one of
// them exists. With force it replaces a file, so that neither its mode nor the target of a link is
// kept. After an error, of a full disk for example, everything is as it was before.
func writeFiles(dir string, files []certFile, force bool) (err error) {
	made, err := makeDir(dir)
	defer func() {
		for i := 0; i < len(made) && err != nil; i++ {
			_ = os.Remove(made[i]) // stays if somebody else has put something into it
		}
	}()
	if err != nil {
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
	draft, err := os.MkdirTemp(dir, ".cert-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(draft)) }()
	for _, f := range files {
		if err := writeNew(filepath.Join(draft, f.name), f.mode, f.encode); err != nil {
			return fmt.Errorf("%s: %w", filepath.Join(dir, f.name), err)
		}
	}
	for _, f := range files {
		if err := os.Rename(filepath.Join(draft, f.name), filepath.Join(dir, f.name)); err != nil {
			return err
		}
	}
	return nil
}

// makeDir makes a directory and those above it, and returns the ones that it made, the lowest first.
func makeDir(dir string) (made []string, err error) {
	for d := filepath.Clean(dir); ; d = filepath.Dir(d) {
		if _, err := os.Stat(d); !errors.Is(err, fs.ErrNotExist) {
			break
		}
		made = append(made, d)
	}
	return made, os.MkdirAll(dir, 0o700)
}

// writeNew makes a file that must not exist. After an error, of a full disk for example, it is gone.
func writeNew(path string, mode fs.FileMode, write func(io.Writer) error) (err error) {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	// A file system may report only to Sync that it is full.
	err = errors.Join(write(file), file.Sync(), file.Close())
	if err != nil {
		err = errors.Join(err, os.Remove(path))
	}
	return err
}
