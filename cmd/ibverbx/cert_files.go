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

// certFile is a file to write.
type certFile struct {
	name, kind, what string
	der              []byte
	mode             fs.FileMode
}

func (f *certFile) encode(w io.Writer) error {
	return pem.Encode(w, &pem.Block{Type: f.kind, Bytes: f.der})
}

// newSerial returns a certificate serial number of 127 random bits.
func newSerial() (*big.Int, error) {
	return rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
}

// writeFiles writes all files to dir, which it creates. Without force it fails if any of them exists. With force it
// replaces files: their modes and link targets are not kept. A failed write, such as on a full disk, leaves dir as it
// was. A failed rename may leave some files replaced.
func writeFiles(dir string, files []certFile, force bool) (err error) {
	made, err := makeDir(dir)
	defer func() {
		for i := 0; i < len(made) && err != nil; i++ {
			_ = os.Remove(made[i]) // keeps directories with other content
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

// makeDir creates a directory and its missing parents. It returns the created directories, deepest first.
func makeDir(dir string) (made []string, err error) {
	for d := filepath.Clean(dir); ; d = filepath.Dir(d) {
		if _, err := os.Stat(d); !errors.Is(err, fs.ErrNotExist) {
			break
		}
		made = append(made, d)
	}
	return made, os.MkdirAll(dir, 0o700)
}

// writeNew creates a file that must not exist. On error, such as a full disk, it removes the file.
func writeNew(path string, mode fs.FileMode, write func(io.Writer) error) (err error) {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	// Some file systems report a full disk only on Sync.
	err = errors.Join(write(file), file.Sync(), file.Close())
	if err != nil {
		err = errors.Join(err, os.Remove(path))
	}
	return err
}
