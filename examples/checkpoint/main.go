// Command checkpoint pulls a checkpoint, a directory of large files, from one process to another. The pulling
// process is killed with SIGKILL in the middle and started again, and only the missing data is sent. Every
// chunk is verified in transit, and at the end the program compares all bytes itself.
//
// The program is the training host, which serves the checkpoint. It starts a second copy of itself as the
// host that pulls it.
package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"ibverbx/bootstrap"
	"ibverbx/files"
	"ibverbx/node"
	"ibverbx/transfer"
)

const (
	shards     = 3
	shardBytes = 32 << 20
	// pullEnv selects the pulling host. It holds the address of the training host.
	pullEnv = "CHECKPOINT_PULL_FROM"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	var err error
	if addr := os.Getenv(pullEnv); addr != "" {
		err = pull(ctx, addr, os.Args[1])
	} else {
		err = run(ctx, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "checkpoint:", err)
		cancel()
		os.Exit(1)
	}
}

// pull is the host that pulls. It reports its progress as lines of JSON. dir holds the token and, later, the
// checkpoint. Data from an earlier process is reused.
func pull(ctx context.Context, addr, dir string) error {
	n, err := node.New(ctx, node.Config{Auth: bootstrap.Config{TokenFile: filepath.Join(dir, "token")}})
	if err != nil {
		return err
	}
	e, err := transfer.New(transfer.Config{Node: n})
	if err != nil {
		return errors.Join(err, n.Close())
	}
	f, err := files.New(files.Config{Transfer: e})
	if err != nil {
		return errors.Join(err, e.Close(ctx), n.Close())
	}
	defer func() { _ = errors.Join(f.Close(ctx), e.Close(ctx), n.Close()) }()
	host, err := f.Peer(ctx, addr)
	if err != nil {
		return err
	}
	t := host.Get("ckpt-42", filepath.Join(dir, "pulled"), files.TransferConfig{})
	for s := range t.Progress(ctx, 2*time.Millisecond) {
		if err := json.NewEncoder(os.Stdout).Encode(s); err != nil {
			return err
		}
	}
	return t.Wait(ctx)
}

// run is the training host.
func run(ctx context.Context, w io.Writer) (err error) {
	dir, err := os.MkdirTemp("", "checkpoint")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	token, saved := filepath.Join(dir, "token"), filepath.Join(dir, "saved")
	if err := errors.Join(os.WriteFile(token, []byte("a secret that both hosts share"), 0o600), save(saved)); err != nil {
		return err
	}
	n, err := node.New(ctx, node.Config{Auth: bootstrap.Config{TokenFile: token}, Listen: "127.0.0.1:0"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.Close()) }()
	e, err := transfer.New(transfer.Config{Node: n})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close(ctx)) }()
	export := files.ExportConfig{Name: "ckpt-42", Path: saved, DefaultAccess: files.Read}
	f, err := files.New(files.Config{Transfer: e, Exports: []files.ExportConfig{export}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close(ctx)) }()
	return pullTwice(ctx, w, n.Addr().String(), dir)
}

// save writes a checkpoint, as a training run would.
func save(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	random := rand.NewChaCha8([32]byte{42})
	shard := make([]byte, shardBytes)
	for i := range shards {
		if _, err := random.Read(shard); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("shard-%d.safetensors", i)), shard, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// pullTwice kills the first pull in the middle and completes the second.
func pullTwice(ctx context.Context, w io.Writer, addr, dir string) error {
	const all = shards * shardBytes
	for {
		s, killed, err := startPull(ctx, addr, dir, all/2)
		if err != nil {
			return err
		}
		if killed {
			fmt.Fprintf(w, "killed after %d of %d MiB\n", s.Bytes>>20, all>>20)
			break
		}
		// It finished before it was killed.
		if err := os.RemoveAll(filepath.Join(dir, "pulled")); err != nil {
			return err
		}
	}
	s, _, err := startPull(ctx, addr, dir, all+1)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "pulled again: %d MiB were there already, %d chunks verified, %d bad\n", s.BytesReused>>20, s.Chunks, s.ChunksRetried)
	if err := compare(filepath.Join(dir, "saved"), filepath.Join(dir, "pulled")); err != nil {
		return err
	}
	fmt.Fprintf(w, "%d shards are the same\n", shards)
	return nil
}

// startPull runs a pulling process and kills it once it has limit bytes. It returns the progress of the
// process.
func startPull(ctx context.Context, addr, dir string, limit int64) (last files.Status, killed bool, err error) {
	self, err := os.Executable()
	if err != nil {
		return last, false, err
	}
	cmd := exec.CommandContext(ctx, self, dir)
	cmd.Env = append(os.Environ(), pullEnv+"="+addr)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return last, false, err
	}
	for lines := bufio.NewScanner(out); lines.Scan() && !killed && err == nil; {
		if err = json.Unmarshal(lines.Bytes(), &last); err == nil && last.Bytes >= limit {
			err = cmd.Process.Kill() // SIGKILL: the process cannot clean up
			killed = true
		}
	}
	if err != nil {
		return last, killed, errors.Join(err, cmd.Process.Kill(), cmd.Wait())
	}
	if err = cmd.Wait(); killed && !cmd.ProcessState.Success() {
		return last, true, nil
	}
	return last, false, err
}

// compare returns an error if a file in got differs from the one in want.
func compare(want, got string) error {
	for i := range shards {
		name := fmt.Sprintf("shard-%d.safetensors", i)
		a, err := digest(filepath.Join(want, name))
		if err != nil {
			return err
		}
		b, err := digest(filepath.Join(got, name))
		if err != nil {
			return err
		}
		if !bytes.Equal(a, b) {
			return fmt.Errorf("%s differs", name)
		}
	}
	return nil
}

func digest(file string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	h := sha256.New()
	_, err = io.Copy(h, f)
	return h.Sum(nil), errors.Join(err, f.Close())
}
