package files

import (
	"bytes"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ibverbx/internal/chunk"
	"ibverbx/internal/testslice"
)

// killTree returns the files of TestKilledAnywhere by name.
func killTree() map[string][]byte {
	all := map[string][]byte{}
	for i := range 400 {
		all[fmt.Sprintf("%02d/%04d", i%20, i)] = bytes.Repeat(fmt.Appendf(nil, "%08d", i), 1+rand.IntN(3000))
	}
	for i := range 2 {
		b := make([]byte, 12*chunk.Size+99)
		fill(b, uint64(i))
		all[fmt.Sprintf("large/%d", i)] = b
	}
	return all
}

// stored describes the copy of a tree after a kill, in bytes.
type stored struct {
	// complete counts files with final names, chunks the chunks of partial files, and lost small
	// files under temporary names.
	complete, chunks, lost int64
	files                  int
}

// storedIn returns the state of a copy.
func storedIn(t *testing.T, dir string, want map[string][]byte) (s stored) {
	t.Helper()
	err := filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return nil //nolint:nilerr // the process may just have renamed it
		}
		base := e.Name()
		info, err := e.Info()
		if err != nil {
			return nil //nolint:nilerr // the same
		}
		switch rel, _ := filepath.Rel(dir, name); {
		case want[filepath.ToSlash(rel)] != nil:
			s.complete += info.Size()
			s.files++
		case filepath.Base(filepath.Dir(name)) == "large" && strings.HasSuffix(base, ".ibx-partial"):
			final := strings.TrimSuffix(strings.TrimPrefix(base, "."), ".ibx-partial")
			s.chunks += int64(chunksIn(filepath.Join(filepath.Dir(name), final))) * chunk.Size
		default:
			s.lost += info.Size()
		}
		return nil
	})
	wantOK(t, "WalkDir", err)
	return s
}

// TestKilledAnywhere kills the receiving or the sending process at 50 random moments of Get and Put
// of a tree. The next attempt, or the same one after the server was restarted, completes the tree.
// Stored files, and all chunks of large files but the last of each, are not sent again. At most 1
// MiB of small files, and the chunks in flight, are sent twice.
func TestKilledAnywhere(t *testing.T) {
	want := killTree()
	served, local := memoryDir(t), memoryDir(t)
	for name, b := range want {
		writeFile(t, filepath.Join(served, "t", name), b)
		writeFile(t, filepath.Join(local, "put", name), b)
	}
	addr := freeAddr(t)
	start := func() *child { return spawn(t, asServer+"="+served, asPartner+"="+addr) }
	server := start()
	part := testslice.Of(t)
	for i := range part.Count(50) {
		i += part.First(50)
		put, killServer := i%2 == 1, i/2%2 == 1
		result, to, name := filepath.Join(memoryDir(t), "t"), "", "d/t"
		to = result
		if put {
			result, to, name = filepath.Join(served, "put"), local, filepath.Join(local, "put")
			wantOK(t, "RemoveAll", os.RemoveAll(result))
		}
		run := func() *child { return spawn(t, asServer+"="+to, asClient+"="+name, asPartner+"="+addr) }
		before := server.sent(t)
		client := run()
		moment := rand.IntN(len(want))
		eventually(t, "some files are stored", func() bool {
			select {
			case <-client.ended:
				return true
			default:
				return storedIn(t, result, want).files >= moment
			}
		})
		var there stored
		if killServer {
			server.kill()
			server = start()
		} else {
			client.kill()
			there = storedIn(t, result, want)
			if there.lost > maxBatches*maxBatchSize {
				t.Errorf("kill %d: %d bytes are lost, want at most %d batches", i, there.lost, maxBatches)
			}
			if put { // the server stores the tree, and detects the lost client within a moment
				there = stored{complete: there.complete}
			}
			client = run()
		}
		if <-client.ended; client.err != nil {
			t.Fatalf("kill %d at file %d: the process that was not killed: %v", i, moment, client.err)
		}
		for name, b := range want {
			wantBytes(t, filepath.Join(result, name), b)
		}
		if s := storedIn(t, result, want); s.files != len(want) || s.lost+s.chunks > 0 {
			t.Errorf("kill %d at file %d: the tree has %+v, want %d files", i, moment, s, len(want))
		}
		var kept, files, sent int64
		if _, err := fmt.Sscan(client.out.String(), &kept, &files, &sent); err != nil || kept < there.complete+there.chunks-2*chunk.Size {
			t.Errorf("kill %d at file %d: %d bytes were there already, %v, want %+v", i, moment, kept, err, there)
		}
		if !put {
			sent = server.sent(t) - before
		}
		if put == killServer { // the receiver was killed, and the sender has counted both attempts
			wantSentOnce(t, i, sent, want)
		}
	}
}

// wantSentOnce checks the number of bytes sent until a tree is complete: only data in flight may be
// sent twice.
func wantSentOnce(t *testing.T, kill int, sent int64, want map[string][]byte) {
	t.Helper()
	for _, b := range want {
		sent -= int64(len(b))
	}
	if sent > maxBatches*maxBatchSize+stageSlots*chunk.Size {
		t.Errorf("kill %d: %d bytes were sent twice, want at most those in flight", kill, sent)
	}
}
