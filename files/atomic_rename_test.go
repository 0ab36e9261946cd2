package files

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// TestRenameIsAtomic: a name refers to the old file until the new one is complete. A reader never
// observes a partial file.
func TestRenameIsAtomic(t *testing.T) {
	d := newDepot(t, memoryNetwork(1), Read)
	old := []byte("old")
	want := d.write(t, "f", manyChunks, 1)
	dest := filepath.Join(d.to, "f")
	writeFile(t, dest, old)
	stop := make(chan struct{})
	var reader sync.WaitGroup
	reader.Go(func() {
		for {
			b, err := os.ReadFile(dest)
			if err != nil || len(b) != len(old) && len(b) != len(want) {
				t.Errorf("ReadFile during Get: %d bytes, %v", len(b), err)
				return
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	})
	for range 5 {
		wantOK(t, "Get", d.peer.Get("d/f", dest, TransferConfig{Sync: SyncNever}).Wait(soon(t)))
		wantBytes(t, dest, want)
		writeFile(t, dest+"2", old)
		wantOK(t, "Rename", os.Rename(dest+"2", dest))
	}
	close(stop)
	reader.Wait()
}
