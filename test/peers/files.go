package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

const (
	largeSize    = 1 << 30
	listedFiles  = 1_000_000
	listedPerDir = 1000
)

// writeLarge fills a directory with a file of 1 GiB.
func writeLarge(dir string) error {
	f, err := os.Create(filepath.Join(dir, "file"))
	if err != nil {
		return err
	}
	part := make([]byte, mib)
	for i := range part {
		part[i] = byte(i * 7)
	}
	for range largeSize / mib {
		if _, err := f.Write(part); err != nil {
			return errors.Join(err, f.Close())
		}
	}
	return f.Close()
}

// newLargeCopy returns a directory in memory for a copy of the large file. The memory was used just before: a virtual
// machine may have returned idle pages to its host, and the first side of each round would pay for their return.
func (b *bench) newLargeCopy() (dir string, remove func(), err error) {
	if dir, remove, err = b.newCopy(inMemory); err != nil {
		return "", nil, err
	}
	if err := errors.Join(writeLarge(dir), os.Remove(filepath.Join(dir, "file"))); err != nil {
		remove()
		return "", nil, err
	}
	return dir, remove, nil
}

// listed fills a directory with a million empty files.
func listed(dir string) error {
	for i := range listedFiles / listedPerDir {
		sub := filepath.Join(dir, fmt.Sprintf("directory-%04d", i))
		if err := os.Mkdir(sub, 0o755); err != nil {
			return err
		}
		for j := range listedPerDir {
			if err := os.WriteFile(filepath.Join(sub, fmt.Sprintf("file-%04d.dat", j)), nil, 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}

// used returns the CPU seconds of an exited process.
func used(cmd *exec.Cmd) float64 {
	return (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds()
}

// withServer runs a client against a server, and returns both processes after their exit.
func withServer(ctx context.Context, server *exec.Cmd, client func(addr string) *exec.Cmd) (*exec.Cmd, error) {
	var c *exec.Cmd
	_, err := serving(server, "listening on ", func(addr string) (float64, error) {
		addr, _, _ = strings.Cut(addr, ",")
		c = client(strings.Fields(addr)[0])
		_, err := output(ctx, c)
		return 0, err
	})
	return c, err
}

// getLarge returns the CPU time of "ibverbx serve" and "ibverbx get" for a large file.
func (b *bench) getLarge() side {
	return b.cpuTime(b.serve, func(ctx context.Context, addr, to string) *exec.Cmd {
		return exec.CommandContext(ctx, b.tool, "get", addr, "large/file", to, "--token-file", b.token, "-q")
	})
}

// curl returns the CPU time of a server of net/http and of curl for the same file.
func (b *bench) curl() side {
	serve := func(ctx context.Context, dir string) *exec.Cmd {
		server := exec.CommandContext(ctx, b.self, "worker", "https", "serve", "127.0.0.1:0", "0")
		server.Dir = dir
		return server
	}
	get := b.cpuTime(serve, func(ctx context.Context, addr, to string) *exec.Cmd {
		return exec.CommandContext(ctx, "curl", "-ksf", "-o", to, "https://"+addr+"/file")
	})
	return func(ctx context.Context) (float64, error) {
		if err := installed("curl", "curl"); err != nil {
			return 0, err
		}
		return get(ctx)
	}
}

// cpuTime returns the CPU time of a server of the large file and of a client that copies it to a path.
func (b *bench) cpuTime(serve func(ctx context.Context, dir string) *exec.Cmd, get func(ctx context.Context, addr, to string) *exec.Cmd) side {
	return func(ctx context.Context) (float64, error) {
		dir, err := b.once("large", writeLarge)
		if err != nil {
			return 0, err
		}
		to, remove, err := b.newLargeCopy()
		if err != nil {
			return 0, err
		}
		defer remove()
		server := serve(ctx, dir)
		client, err := withServer(ctx, server, func(addr string) *exec.Cmd { return get(ctx, addr, filepath.Join(to, "file")) })
		if err != nil {
			return 0, err
		}
		return used(server) + used(client), nil
	}
}

// listing returns the peak memory of the client or the server of a dry run for a million files, in MiB.
func (b *bench) listing(ofServer bool) side {
	return func(ctx context.Context) (float64, error) {
		dir, err := b.once("listed", listed)
		if err != nil {
			return 0, err
		}
		server := b.serve(ctx, dir)
		client, err := withServer(ctx, server, func(addr string) *exec.Cmd {
			return exec.CommandContext(ctx, b.tool, "get", addr, "listed", filepath.Join(b.dir, "nowhere"), "--token-file", b.token, "-q", "--dry-run")
		})
		if err != nil {
			return 0, err
		}
		if ofServer {
			client = server
		}
		return peakMemory(client.ProcessState)
	}
}
