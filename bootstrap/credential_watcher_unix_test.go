//go:build unix

package bootstrap

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// TestChangedTokenFileWithoutDescriptors: a changed file is read again until the process has a descriptor for it, so that an old token does not
// stay valid.
func TestChangedTokenFileWithoutDescriptors(t *testing.T) { // not parallel: it limits the whole process
	dir := t.TempDir()
	file, changed := filepath.Join(dir, "token"), filepath.Join(dir, "changed")
	writeFile(t, file, secretOf("old"))
	writeFile(t, changed, secretOf("later")) // another length, in case both files have the same time
	cfg := Config{TokenFile: file}
	var next func() error
	cfg.Reloaded, next = reloads(t)
	d := newDoor(t, cfg)
	_, y := d.meet(t, Config{Token: []byte(secretOf("old"))})

	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatalf("Getrlimit: got %v, want no error", err)
	}
	restore := func() {
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
			t.Errorf("Setrlimit: got %v, want no error", err)
		}
	}
	defer restore()
	none := limit
	none.Cur = 0
	if err := errors.Join(syscall.Setrlimit(syscall.RLIMIT_NOFILE, &none), os.Rename(changed, file)); err != nil {
		t.Fatalf("change the token: got %v, want no error", err)
	}
	err := next()
	restore()
	wants(t, "Reloaded without a descriptor", err, syscall.EMFILE)
	for errors.Is(err, syscall.EMFILE) {
		err = next()
	}
	if err != nil {
		t.Errorf("Reloaded with descriptors: got %v, want no error", err)
	}
	<-y.Done()
	wants(t, "the Conn of the old token", y.Err(), ErrAuth)
}

// TestReplacedTokenFile: a token file is replaced by one of the same size and modification time. The new token is used.
func TestReplacedTokenFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, other := filepath.Join(dir, "token"), filepath.Join(dir, "other")
	for name, text := range map[string]string{file: secretOf("old"), other: secretOf("new")} {
		writeFile(t, name, text)
		if err := os.Chtimes(name, time.Unix(1, 0), time.Unix(1, 0)); err != nil {
			t.Fatalf("Chtimes: got %v, want no error", err)
		}
	}
	cfg := Config{TokenFile: file}
	var next func() error
	cfg.Reloaded, next = reloads(t)
	d := newDoor(t, cfg)
	_, y := d.meet(t, Config{Token: []byte(secretOf("old"))})
	if err := os.Rename(other, file); err != nil {
		t.Fatalf("Rename: got %v, want no error", err)
	}
	if err := next(); err != nil {
		t.Errorf("Reloaded: got %v, want no error", err)
	}
	<-y.Done()
	wants(t, "the Conn of the old token", y.Err(), ErrAuth)
	d.meet(t, Config{Token: []byte(secretOf("new"))})
}
