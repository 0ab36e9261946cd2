package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

const (
	treeFiles = 10_000
	treeSize  = 20_000
)

// situation is the state of the copy before the measured run.
type situation uint8

const (
	nothingThere situation = iota
	unchanged
	oneChanged // in the copy
)

// place is the location of copies.
type place uint8

const (
	inMemory place = iota
	onDisk
)

// newCopy returns a directory for a copy. Copies on disk stay until the end: on ext4 without a journal, inodes of removed files are skipped
// one by one for five minutes, so that the next copy would depend on the last one.
func (b *bench) newCopy(at place) (dir string, remove func(), err error) {
	if at == inMemory {
		if dir, err = os.MkdirTemp("/dev/shm", "peers"); err == nil {
			return dir, func() { _ = os.RemoveAll(dir) }, nil
		}
	}
	dir, err = os.MkdirTemp(b.dir, "copy")
	return dir, func() {}, err
}

// tree fills a directory with many small files.
func tree(dir string) error {
	content := make([]byte, treeSize)
	old := time.Now().Add(-time.Hour) // makes comparisons by time trust them
	for i := range treeFiles {
		copy(content, fmt.Sprint("file ", i))
		name := filepath.Join(dir, fmt.Sprintf("d%02d", i%100), fmt.Sprint("f", i))
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(name, content, 0o644); err != nil {
			return err
		}
		if err := os.Chtimes(name, old, old); err != nil {
			return err
		}
	}
	return nil
}

// copied runs a command that copies the tree to a directory, named by its last argument, and returns its seconds in a
// situation.
func (b *bench) copied(ctx context.Context, at place, before situation, args ...string) (_ float64, err error) {
	to, remove, err := b.newCopy(at)
	if err != nil {
		return 0, err
	}
	defer remove()
	args = append(args, filepath.Join(to, "tree"))
	var begin time.Time
	for run := range 2 {
		begin = time.Now()
		if _, err := output(ctx, exec.CommandContext(ctx, args[0], args[1:]...)); err != nil {
			return 0, err
		}
		if run == 0 && before == nothingThere {
			break
		}
		if run == 0 && before == oneChanged {
			if err := os.WriteFile(filepath.Join(to, "tree", "d00", "f0"), []byte("changed"), 0o644); err != nil {
				return 0, err
			}
		}
	}
	return time.Since(begin).Seconds(), nil
}

// get copies the tree with "ibverbx get" and flags.
func (b *bench) get(at place, before situation, flags ...string) side {
	return func(ctx context.Context) (float64, error) {
		dir, err := b.once("tree", tree)
		if err != nil {
			return 0, err
		}
		return serving(b.serve(ctx, dir), "listening on ", func(addr string) (float64, error) {
			addr, _, _ = strings.Cut(addr, ",")
			args := append([]string{b.tool, "get", "--token-file", b.token}, flags...)
			return b.copied(ctx, at, before, append(args, strings.Fields(addr)[0], "tree")...)
		})
	}
}

// rsync copies the tree from an rsync daemon with "rsync -a" and flags.
func (b *bench) rsync(at place, before situation, flags ...string) side {
	return func(ctx context.Context) (float64, error) {
		if err := installed("rsync", "rsync"); err != nil {
			return 0, err
		}
		dir, err := b.once("tree", tree)
		if err != nil {
			return 0, err
		}
		port, err := freePort()
		if err != nil {
			return 0, err
		}
		config := filepath.Join(b.dir, "rsyncd.conf")
		if err := os.WriteFile(config, fmt.Appendf(nil, "use chroot = no\n[tree]\npath = %s\n", dir), 0o600); err != nil {
			return 0, err
		}
		server := exec.CommandContext(ctx, "rsync", "--daemon", "--no-detach", "--address", "127.0.0.1", "--port", port, "--config", config, "--log-file=/dev/stdout")
		return serving(server, "rsyncd version", func(string) (float64, error) {
			if err := awaitPort(ctx, port); err != nil {
				return 0, err
			}
			return b.copied(ctx, at, before, append(append([]string{"rsync", "-a"}, flags...), "rsync://127.0.0.1:"+port+"/tree/")...)
		})
	}
}
