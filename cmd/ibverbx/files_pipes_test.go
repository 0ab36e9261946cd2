package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"ibverbx/internal/enginetest"
	"ibverbx/internal/filter"
)

// piped runs a command line with standard input, and returns its exit status, standard output and standard error.
func piped(t *testing.T, in io.Reader, args ...string) (int, []byte, string) {
	t.Helper()
	var out, err bytes.Buffer
	status := run(t.Context(), args, streams{in: in, out: &out, err: &err, provider: providerSoftNIC})
	return status, out.Bytes(), err.String()
}

// TestPipes: get writes one file to standard output, and put stores standard input.
func TestPipes(t *testing.T) {
	from, in := t.TempDir(), t.TempDir()
	want := content(t, filepath.Join(from, "f"), 3<<20+5)
	_, addr := serveFiles(t, "127.0.0.1:0", noAuth, from+"=d", "--write", in+"=in")
	for _, more := range [][]string{nil, {"--bwlimit", "100M"}} {
		status, out, err := piped(t, nil, append([]string{"get", addr, "d/f", "-", noAuth}, more...)...)
		if status != exitOK || !bytes.Equal(out, want) || !strings.HasPrefix(err, "3.1 MB in ") {
			t.Errorf("get - %v: status %d with %d bytes and %q, want the file", more, status, len(out), err)
		}
	}
	if status, _, err := piped(t, bytes.NewReader(want), "put", addr, "-", "in/new/g", noAuth, "-q"); status != exitOK || err != "" {
		t.Errorf("put -: status %d, %q", status, err)
	}
	wantContent(t, filepath.Join(in, "new/g"), want)
	for _, tt := range []struct {
		args   string
		status int
		want   string
	}{
		{"get ADDR d -", exitUsage, "a directory cannot be written to standard output"},
		{"get ADDR d/none -", exitNotFound, "does not serve"},
		{"get ADDR d/f d/f -", exitUsage, "only one file can be a pipe"},
		{"get ADDR d/f - --json", exitUsage, "standard output holds the file"},
		{"get ADDR d/f - --delete", exitUsage, "need a directory"},
		{"put ADDR - in", exitUsage, "standard input has no name"},
		{"put ADDR - in/x/", exitUsage, "standard input has no name"},
		{"put ADDR - FROM/f in/x/", exitUsage, "only one file can be a pipe"},
	} {
		args := strings.Fields(strings.NewReplacer("ADDR", addr, "FROM", from).Replace(tt.args))
		status, out, err := piped(t, strings.NewReader("x"), append(args, noAuth)...)
		if status != tt.status || !strings.Contains(err, tt.want) || len(out) > 0 {
			t.Errorf("%s: status %d, %q and %q, want %d and %q", tt.args, status, out, err, tt.status, tt.want)
		}
	}
}

// TestGetToBlockedPipe: a signal stops get even if its output is not read.
func TestGetToBlockedPipe(t *testing.T) {
	from := t.TempDir()
	content(t, filepath.Join(from, "f"), 3<<20)
	_, addr := serveFiles(t, "127.0.0.1:0", noAuth, from+"=d")
	r, w := io.Pipe()
	defer func() { _ = r.Close() }()
	ctx, cancel := context.WithCancelCause(t.Context())
	ended := make(chan int, 1)
	go func() {
		ended <- run(ctx, []string{"get", addr, "d/f", "-", noAuth}, streams{out: w, err: io.Discard, provider: providerSoftNIC})
	}()
	if _, err := r.Read(make([]byte, 1)); err != nil { // the same Write still waits for more reads
		t.Fatal(err)
	}
	cancel(errors.New("interrupt signal received"))
	select {
	case status := <-ended:
		if status != exitInterrupted {
			t.Errorf("status %d, want %d", status, exitInterrupted)
		}
	case <-time.After(time.Minute):
		t.Error("get does not end")
	}
}

// TestPatterns: get expands patterns to the served names that match.
func TestPatterns(t *testing.T) {
	from := t.TempDir()
	for _, name := range []string{"a.bin", "b.bin", "c.txt", "sub/d.bin", "sub/e", "[x]", ".h.bin", "other/d.bin"} {
		content(t, filepath.Join(from, name), 100)
	}
	if err := os.Symlink("/nowhere", filepath.Join(from, "sub/link")); err != nil {
		t.Skip(err)
	}
	_, addr := serveFiles(t, "127.0.0.1:0", noAuth, from+"=d")
	for _, tt := range []struct{ name, want string }{
		{"d/*.bin", "a.bin b.bin"},
		{"d/[bc].*", "b.bin c.txt"},
		{"*/s?b", "d.bin e link"}, // a single directory
		{"d/[x]", "[x]"},          // a served name
		{"d/.*", ".h.bin"},
		{"d/sub/* d/c*", "c.txt d.bin e link"},
		{"d/su* d/other/*", "d.bin sub"},
		{"d/* d/a* d/a.bin", "[x] a.bin b.bin c.txt other sub"},
	} {
		to := t.TempDir()
		succeed(t, append(append([]string{"get", addr}, strings.Fields(tt.name)...), to+"/", noAuth)...)
		list, _ := os.ReadDir(to)
		var names []string
		for _, e := range list {
			names = append(names, e.Name())
		}
		if got := strings.Join(names, " "); got != tt.want {
			t.Errorf("get %s: got %q, want %q", tt.name, got, tt.want)
		}
	}
	to := t.TempDir() // one transfer for both files, which leaves the attributes of the directory
	enginetest.WantOK(t, "Chmod", os.Chmod(to, 0o751))
	args := []string{"get", addr, "d/*.bin", to, noAuth}
	for _, run := range []struct {
		args []string
		want string
	}{{append(args, "-n"), "dry run: 2 files sent, 0 unchanged"}, {args, "\n2 files sent, 0 unchanged"}, {args, "\n0 files sent, 2 unchanged"}} {
		if out := succeed(t, run.args...); !strings.Contains(out, run.want) {
			t.Errorf("%v prints %q, want %q", run.args, out, run.want)
		}
	}
	source, err := os.Stat(from)
	enginetest.WantOK(t, "Stat", err)
	if info, err := os.Stat(to); err != nil || info.Mode().Perm() != 0o751 || info.ModTime().Equal(source.ModTime()) {
		t.Errorf("the destination has %v, %v, want its own attributes", info, err)
	}
	for name, status := range map[string]int{"d/*.none": exitNotFound, "d/[": exitUsage, "none/*": exitNotFound, "d/*/d.bin": exitUsage} {
		if got, _, err := command(t.Context(), "get", addr, name, t.TempDir()+"/", noAuth); got != status {
			t.Errorf("get %s: status %d, %q, want %d", name, got, err, status)
		}
	}
}

// TestFilesFrom: --files-from copies the named files only, and names missing ones.
func TestFilesFrom(t *testing.T) {
	from, in := t.TempDir(), t.TempDir()
	for _, name := range []string{"a", "b", "sub/c", "sub/d"} {
		content(t, filepath.Join(from, name), 100)
	}
	list := filepath.Join(t.TempDir(), "list")
	enginetest.WantOK(t, "WriteFile", os.WriteFile(list, []byte("# comment\n\n/a\r\nsub/./c\n"), 0o600))
	_, addr := serveFiles(t, "127.0.0.1:0", noAuth, from+"=d", "--write", in+"=in")
	to := filepath.Join(t.TempDir(), "to")
	succeed(t, "get", addr, "d", to, noAuth, "--files-from", list)
	succeed(t, "put", addr, from, "in/x", noAuth, "--files-from", list)
	for _, dir := range []string{to, filepath.Join(in, "x")} {
		for name, want := range map[string]bool{"a": true, "b": false, "sub/c": true, "sub/d": false} {
			if _, err := os.Stat(filepath.Join(dir, name)); (err == nil) != want {
				t.Errorf("%s in %s: %v, want that it exists: %t", name, dir, err, want)
			}
		}
	}
	args := []string{"get", addr, "d", to, noAuth, "--files-from", "-"}
	if status, _, err := piped(t, strings.NewReader("b\nnone\n"), args...); status != exitFailure || !strings.Contains(err, "none") {
		t.Errorf("a missing name: status %d, %q, want %d and the name", status, err, exitFailure)
	}
	if _, err := os.Stat(filepath.Join(to, "b")); err != nil {
		t.Errorf("a name beside a missing one: %v", err)
	}
	if status, out, err := piped(t, strings.NewReader(""), args...); status != exitOK || len(out) > 0 {
		t.Errorf("no names: status %d, %q, %q, want no transfer", status, out, err)
	}
	_, out, _ := piped(t, strings.NewReader(""), append(args, "--json")...)
	if list := objects(t, string(out)); len(list) != 1 || list[0]["phase"] != "done" {
		t.Errorf("no names: --json prints %q, want a result with the phase done", out)
	}
	for _, line := range []string{"../x", "."} {
		if status, _, err := piped(t, strings.NewReader(line), args...); status != exitUsage {
			t.Errorf("%q: status %d, %q, want %d", line, status, err, exitUsage)
		}
	}
	if status, _, err := piped(t, strings.NewReader("a"), append(args, "--delete")...); status != exitUsage {
		t.Errorf("--delete: status %d, %q, want %d", status, err, exitUsage)
	}
}

// TestFilesFromParts: a list that is too long for one filter is split, and every part is a valid one.
func TestFilesFromParts(t *testing.T) {
	f := &transferFlags{names: []string{}}
	f.cfg.Filter = []string{"- *.o"}
	for i := range 20_000 {
		f.names = append(f.names, fmt.Sprintf("a/directory/with/a/long/name/%05d", i), "twice")
	}
	var names []string
	parts := f.parts()
	for _, cfg := range parts {
		for _, rule := range cfg.Filter {
			if name, ok := strings.CutPrefix(rule, "= "); ok {
				names = append(names, name)
			}
		}
		if cfg.Filter[0] != "- *.o" {
			t.Errorf("a part begins with %q", cfg.Filter[0])
		}
		if _, err := filter.New(cfg.Filter); err != nil {
			t.Errorf("a part: %v", err)
		}
	}
	if again := f.parts(); !reflect.DeepEqual(again, parts) { // for the next source
		t.Errorf("the parts for the second source differ: %d instead of %d, the first with %q", len(again), len(parts), again[0].Filter[1])
	}
	if len(parts) < 2 || len(names) != 20_001 || !slices.IsSorted(names) {
		t.Errorf("%d parts with %d names, want several with all names once", len(parts), len(names))
	}
}
