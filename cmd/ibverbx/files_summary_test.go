package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"ibverbx/files"
	"ibverbx/internal/chunk"
)

// TestSummary: after several transfers, one summary has the sums, and the bytes per rail in whichever direction they moved. A failed transfer
// does not prevent it.
func TestSummary(t *testing.T) {
	from, in := t.TempDir(), t.TempDir()
	content(t, filepath.Join(from, "a/f"), 3<<20)
	content(t, filepath.Join(from, "b/g"), 2<<20)
	_, addr := serveFiles(t, "127.0.0.1:0", noAuth, "--addr", "127.0.0.1,127.0.0.2", from+"=d", "--write", in+"=in")
	for _, tt := range []struct {
		args, files string
		status      int
	}{
		{"get ADDR d/a d/b TO/", "2 files sent, 0 unchanged, 0 deleted, 0 failed", exitOK},
		{"get ADDR d/a d/none d/b/g TO/", "2 files sent, 0 unchanged, 0 deleted, 1 failed", exitFailure},
		{"put ADDR FROM/a FROM/none FROM/b/g in/y/", "2 files sent, 0 unchanged, 0 deleted, 1 failed", exitFailure},
		{"put ADDR FROM/a FROM/b in/x/", "2 files sent, 0 unchanged, 0 deleted, 0 failed", exitOK},
	} {
		run := func(more ...string) string {
			args := strings.Fields(strings.NewReplacer("ADDR", addr, "FROM", from, "TO", t.TempDir()).Replace(tt.args))
			args = append(args, noAuth, "--addr", "127.0.0.3,127.0.0.4", "--link", "udp", "--fresh")
			status, out, stderr := command(t.Context(), append(args, more...)...)
			if status != tt.status {
				t.Errorf("%s: status %d, %q, want %d", tt.args, status, stderr, tt.status)
			}
			return out
		}
		want := regexp.MustCompile(`^5\.2 MB in .* 5 chunks verified, 0 bad\nrails: soft0 [0-9.]+ [kM]B, soft1 [0-9.]+ [kM]B\n` + tt.files + `\n$`)
		if out := run(); !want.MatchString(out) {
			t.Errorf("%s prints %q, want %v", tt.args, out, want)
		}
		lines := strings.Split(strings.TrimSpace(run("--json")), "\n")
		var last fileReport
		if err := json.Unmarshal([]byte(lines[len(lines)-1]), &last); err != nil || len(last.Rails) != 2 || last.Rails[0].Bytes+last.Rails[1].Bytes < 5<<20 {
			t.Errorf("%s --json ends with %q, %v, want two rails with all bytes", tt.args, lines[len(lines)-1], err)
		}
	}
}

// TestPutMany: local files of one directory are put by one transfer, also into a served directory itself. Links among them are followed, as
// when each is put alone, and other files of the directory are not touched.
func TestPutMany(t *testing.T) {
	from, in := t.TempDir(), t.TempDir()
	for _, name := range []string{"a.bin", "b.bin", "c.txt", "sub/d", "other/e"} {
		content(t, filepath.Join(from, name), 100)
	}
	if err := errors.Join(os.Symlink("c.txt", filepath.Join(from, "l.bin")), os.Chmod(in, 0o751)); err != nil {
		t.Skip(err)
	}
	_, addr := serveFiles(t, "127.0.0.1:0", noAuth, "--write", in+"=in")
	args := []string{"put", addr}
	for _, name := range []string{"a.bin", "b.bin", "l.bin", "sub", "other/e"} {
		args = append(args, filepath.Join(from, name))
	}
	args = append(args, "in", noAuth)
	for _, run := range []struct{ more, want string }{
		{"-n", "dry run: 5 files sent, 0 unchanged"}, {"-q", ""}, {"--sync=never", "\n0 files sent, 5 unchanged"},
	} {
		if out := succeed(t, append(args, run.more)...); !strings.Contains(out, run.want) {
			t.Errorf("put %s prints %q, want %q", run.more, out, run.want)
		}
	}
	succeed(t, "put", addr, filepath.Join(from, "a.bin"), filepath.Join(from, "b.bin"), "./in//", noAuth)
	var names []string
	for _, pattern := range []string{"*", "*/*"} {
		list, _ := filepath.Glob(filepath.Join(in, pattern))
		for _, name := range list {
			rel, _ := filepath.Rel(in, name)
			names = append(names, rel)
		}
	}
	if got, want := strings.Join(names, " "), "a.bin b.bin e l.bin sub sub/d"; got != want {
		t.Errorf("the host has %q, want %q", got, want)
	}
	if info, err := os.Lstat(filepath.Join(in, "l.bin")); err != nil || !info.Mode().IsRegular() {
		t.Errorf("the link: %v, %v, want its file", info, err)
	}
	if info, err := os.Stat(in); err != nil || info.Mode().Perm() != 0o751 {
		t.Errorf("the served directory: %v, %v, want its own permissions", info, err)
	}
}

// TestPutManyThroughLink: ".." behind a symbolic link is the parent of what the link leads to, even if the link is the current directory.
func TestPutManyThroughLink(t *testing.T) {
	from, in := t.TempDir(), t.TempDir()
	want := map[string][]byte{}
	for i, name := range []string{"a", "b"} {
		content(t, filepath.Join(from, name), 10)
		want[name] = content(t, filepath.Join(from, "real", name), 100+i)
	}
	content(t, filepath.Join(from, "real/sub/f"), 10)
	link := filepath.Join(from, "link")
	if err := os.Symlink("real/sub", link); err != nil {
		t.Skip(err)
	}
	_, addr := serveFiles(t, "127.0.0.1:0", noAuth, "--write", in+"=in")
	t.Chdir(link)
	for _, parent := range []string{"../", link + "/../"} {
		succeed(t, "put", addr, parent+"a", parent+"b", "in/", noAuth)
		for name, b := range want {
			wantContent(t, filepath.Join(in, name), b)
			if err := os.Remove(filepath.Join(in, name)); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestPutManyWithPatterns: patterns apply to the contents of each source, as if it were put alone, and not to its name.
func TestPutManyWithPatterns(t *testing.T) {
	from, in := t.TempDir(), t.TempDir()
	for _, name := range []string{"x.o", "a/f.c", "a/f.o", "b/g.c"} {
		content(t, filepath.Join(from, name), 100)
	}
	_, addr := serveFiles(t, "127.0.0.1:0", noAuth, "--write", in+"=in")
	args := []string{"put", addr, filepath.Join(from, "x.o"), filepath.Join(from, "a"), filepath.Join(from, "b"), "in/", noAuth}
	if out := succeed(t, append(args, "--include", "*.c", "--exclude", "*")...); !strings.Contains(out, "\n3 files sent") {
		t.Errorf("put prints %q, want 3 files", out)
	}
	for name, want := range map[string]bool{"x.o": true, "a/f.c": true, "a/f.o": false, "b/g.c": true} {
		if _, err := os.Stat(filepath.Join(in, name)); (err == nil) != want {
			t.Errorf("%s: %v, want it there: %t", name, err, want)
		}
	}
}

// TestStatusOfSeveral: a lost host has its own exit status, whatever failed before. Otherwise, the status is 1 if others were transferred.
func TestStatusOfSeveral(t *testing.T) {
	missing := &localError{files.ErrNotFound}
	for _, tt := range []struct {
		errs        []error
		ended, lost bool
		want        int
	}{
		{[]error{files.ErrNotFound, files.ErrPeerGone}, true, true, exitPeer},
		{[]error{missing, files.ErrPeerGone}, false, true, exitPeer},
		{[]error{files.ErrNotFound}, true, false, exitFailure},
		{[]error{files.ErrNotFound, files.ErrNotFound}, false, false, exitNotFound},
	} {
		f := &transferFlags{fileFlags: fileFlags{quiet: true}}
		if err := f.concludeAll(t.Context(), streams{}, errors.Join(tt.errs...), tt.ended, tt.lost); fileStatus(err) != tt.want {
			t.Errorf("%v, ended %t, lost %t: status %d, want %d", tt.errs, tt.ended, tt.lost, fileStatus(err), tt.want)
		}
	}
	if err := new(transferFlags).concludeAll(t.Context(), streams{out: io.Discard}, nil, true, false); err != nil {
		t.Errorf("without errors: %v", err)
	}
}

// TestExplainPartial: the error of a partial file that others can write to names that file, even if the destination is a directory.
func TestExplainPartial(t *testing.T) {
	dir := t.TempDir()
	want := "remove " + filepath.Join(dir, ".model.ibx-partial") + ","
	for _, target := range []string{dir, dir + "/", filepath.Join(dir, "model")} {
		if err := explainFile("node1", "d/model", target, chunk.ErrForeign); !strings.Contains(err.Error(), want) {
			t.Errorf("to %s: %v, want %q", target, err, want)
		}
	}
}

// TestExplainDisk: the error of a full or read-only disk names the destination and the fix, and is a failure of this host.
func TestExplainDisk(t *testing.T) {
	for cause, want := range map[error]string{
		syscall.ENOSPC:  "/data/model: no space left on device; free some and run the command again: received data is kept",
		syscall.ENOTDIR: "/data/model: this path or its parent is not a directory; name another destination",
		syscall.EROFS:   "/data/model: read-only file system; use a directory where you may create files",
	} {
		err := explainFile("node1", "d/model", "/data/model", &os.PathError{Op: "write", Path: ".model.ibx-partial", Err: cause})
		if err.Error() != want || fileStatus(err) != exitFailure {
			t.Errorf("%v: got %q with status %d, want %q and %d", cause, err, fileStatus(err), want, exitFailure)
		}
	}
}

// TestExplainDenied: a directory served read-only and files that the server's user cannot access have different fixes.
func TestExplainDenied(t *testing.T) {
	dir := t.TempDir()
	content(t, filepath.Join(dir, "model/x"), 1)
	denied := func(text string) error { return fmt.Errorf("%w (the peer says %q)", files.ErrDenied, text) }
	for _, tt := range []struct {
		err    error
		want   string
		status int
	}{
		{explainPut("node1", "f", "d/f", denied("access denied: only read is allowed")), `node1 does not let you write "d/f"; its directory needs: ibverbx serve --write DIR`, exitNotFound},
		{explainPut("node1", "f", "d/f", denied("openat: permission denied")), `"d/f": the user that runs ibverbx serve on node1 cannot write it`, exitNotFound},
		{explainFile("node1", "d/f", dir, denied("openat: permission denied")), `"d/f": the user that runs ibverbx serve on node1 cannot read it`, exitNotFound},
		{explainFile("node1", "d/model", dir, chunk.ErrKind), filepath.Join(dir, "model") + " is a directory, and d/model is a file; name another destination", exitFailure},
	} {
		if tt.err.Error() != tt.want || fileStatus(tt.err) != tt.status {
			t.Errorf("got %q with status %d, want %q and %d", tt.err, fileStatus(tt.err), tt.want, tt.status)
		}
	}
}
