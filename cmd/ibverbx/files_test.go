package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"ibverbx/files"
	"ibverbx/internal/enginetest"
	"ibverbx/transfer"
)

// content writes a file of random bytes.
func content(t testing.TB, name string, size int) []byte {
	t.Helper()
	b := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(b)
	enginetest.WantOK(t, "MkdirAll", os.MkdirAll(filepath.Dir(name), 0o700))
	enginetest.WantOK(t, "WriteFile", os.WriteFile(name, b, 0o600))
	return b
}

func wantContent(t testing.TB, name string, want []byte) {
	t.Helper()
	if got, err := os.ReadFile(name); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("%s: %d bytes, error %v, want the %d bytes of the source", name, len(got), err, len(want))
	}
}

// serveFiles starts a server of files and returns its address.
func serveFiles(t testing.TB, listen string, args ...string) (*process, string) {
	t.Helper()
	return served(t, begin(t, append([]string{"serve", "--provider", "softnic", "--listen", listen}, args...)...))
}

// freeAddr returns an address that a server can use again after its end: no other process has the IP, so none takes the port.
func freeAddr(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", fmt.Sprintf("127.%d.%d.%d:0", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254)))
	enginetest.WantOK(t, "Listen", err)
	defer l.Close()
	return l.Addr().String()
}

// Files and directories go both ways between two processes, and are listed.
func TestFilesTwoProcesses(t *testing.T) {
	token := newToken(t, "a secret of this test, long enough")
	from, in, to := t.TempDir(), t.TempDir(), t.TempDir()
	want := content(t, filepath.Join(from, "v7/model"), 5<<20+17)
	_, addr := serveFiles(t, "127.0.0.1:0", "--token-file", token, from+"=models", "--write", in+"=in")
	if out := succeed(t, "get", addr, "models/v7", to, "--token-file", token, "-q"); out != "" {
		t.Errorf("get -q prints %q, want nothing", out)
	}
	wantContent(t, filepath.Join(to, "model"), want)
	out := succeed(t, "get", addr, "models/v7/model", filepath.Join(to, "model"), "--token-file", token, "--checksum")
	if !strings.Contains(out, "5.2 MB in ") || !strings.Contains(out, "5.2 MB were there already, 6 chunks verified, 0 bad") {
		t.Errorf("get prints %q", out)
	}
	succeed(t, "put", addr, filepath.Join(to, "model"), "--token-file", token)
	wantContent(t, filepath.Join(in, "model"), want)
	succeed(t, "put", addr, from, "in/a/tree", "--token-file", token)
	wantContent(t, filepath.Join(in, "a/tree/v7/model"), want)
	if out := succeed(t, "ls", addr, "--token-file", token); !strings.Contains(out, "w            0") || !strings.Contains(out, " in/\n") || !strings.Contains(out, " models/\n") {
		t.Errorf("ls prints %q", out)
	}
	var l listed
	first, rest, _ := strings.Cut(succeed(t, "ls", addr, "models/v7", "--token-file", token, "--json"), "\n")
	if err := json.Unmarshal([]byte(first), &l); err != nil || l.Name != "models/v7/model" || l.Size != 5<<20+17 {
		t.Errorf("ls --json prints %+v, %v", l, err)
	}
	var last resultLine
	if err := json.Unmarshal([]byte(rest), &last); err != nil || last.Type != lineResult || *last.Entries != 1 || last.Transport != "rc" || len(last.Rails) == 0 {
		t.Errorf("ls --json ends with %q, %v, want a result with one entry and the rails", rest, err)
	}
}

// TestSeveralSources: several sources keep their names below the destination, the contents of a single directory go to it, and a trailing
// slash changes nothing.
func TestSeveralSources(t *testing.T) {
	from, in := t.TempDir(), t.TempDir()
	for _, name := range []string{"a/f", "b/g", "h"} {
		content(t, filepath.Join(from, name), 100)
	}
	_, addr := serveFiles(t, "127.0.0.1:0", noAuth, from+"=d", "--write", in+"=in")
	tree := func(dir string) string {
		var list []string
		for _, pattern := range []string{"*", "*/*"} {
			names, _ := filepath.Glob(filepath.Join(dir, pattern))
			for _, name := range names {
				rel, _ := filepath.Rel(dir, name)
				list = append(list, filepath.ToSlash(rel))
			}
		}
		slices.Sort(list)
		return strings.Join(list, " ")
	}
	for _, tt := range []struct{ args, want string }{
		{"get ADDR d/a d/b/ d/h TO/new/", "a a/f b b/g h"},
		{"get ADDR d/a d/h TO", "a a/f h"},
		{"get ADDR d/a TO", "f"},
		{"get ADDR d/a/ TO/", "f"},
		{"get ADDR d TO --exclude *g --include nothing", "a a/f b h"},
		{"put ADDR FROM/a FROM/h in/x/", "a a/f h"},
		{"put ADDR FROM/b/ in/x", "g"},
		{"put ADDR FROM/b in/x/", "g"},
	} {
		to := t.TempDir()
		args := strings.Fields(strings.NewReplacer("ADDR", addr, "TO", to, "FROM", from).Replace(tt.args))
		succeed(t, append(args, noAuth)...)
		dir := to
		switch {
		case args[0] == "put":
			dir = filepath.Join(in, "x")
		case strings.Contains(tt.args, "TO/new"):
			dir = filepath.Join(to, "new")
		}
		if got := tree(dir); got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.args, got, tt.want)
		}
		_ = os.RemoveAll(filepath.Join(in, "x"))
	}
}

// TestMirror: --delete with rules from a file, --dry-run, and the numbers of both outputs.
func TestMirror(t *testing.T) {
	from, to, in := t.TempDir(), t.TempDir(), t.TempDir()
	for _, name := range []string{"a", "b.o", "d/c"} {
		content(t, filepath.Join(from, name), 100)
	}
	for _, name := range []string{"x/y", "z.o"} {
		content(t, filepath.Join(to, name), 100)
		content(t, filepath.Join(in, "m", name), 100)
	}
	rules := filepath.Join(t.TempDir(), "rules")
	enginetest.WantOK(t, "WriteFile", os.WriteFile(rules, []byte("# objects\n\n+ keep.o\n*.o\n"), 0o600))
	_, addr := serveFiles(t, "127.0.0.1:0", noAuth, from+"=d", "--write", in+"=in")
	for dest, args := range map[string][]string{to: {"get", addr, "d", to}, filepath.Join(in, "m"): {"put", addr, from, "in/m"}} {
		args = append(args, noAuth, "--delete", "--exclude-from", rules)
		if got, want := succeed(t, append(args, "-n")...), "dry run: 2 files sent, 0 unchanged, 2 deleted, 0 failed\n"; got != want {
			t.Errorf("%s --dry-run prints %q, want %q", args[0], got, want)
		}
		if got, want := succeed(t, args...), "\n2 files sent, 0 unchanged, 2 deleted, 0 failed\n"; !strings.HasSuffix(got, want) {
			t.Errorf("%s prints %q, want %q at its end", args[0], got, want)
		}
		content(t, filepath.Join(dest, "x"), 1)
		lines := strings.Split(strings.TrimSpace(succeed(t, append(args, "--json")...)), "\n")
		var last fileReport
		if err := json.Unmarshal([]byte(lines[len(lines)-1]), &last); err != nil || last.Sent != 0 || last.Unchanged != 2 || last.Deleted != 1 || last.Failed != 0 || last.Kept != 200 {
			t.Errorf("%s --json ends with %q, %v, want 2 unchanged and 1 deleted", args[0], lines[len(lines)-1], err)
		}
	}
	for _, dir := range []string{to, filepath.Join(in, "m")} {
		for name, want := range map[string]bool{"a": true, "d/c": true, "z.o": true, "x": false, "b.o": false} {
			if _, err := os.Stat(filepath.Join(dir, name)); (err == nil) != want {
				t.Errorf("%s in %s: %v, want that it exists: %v", name, dir, err, want)
			}
		}
	}
}

// chunksIn returns how many chunks of a partial file have arrived, at least in part. Their first bytes are not zero.
func chunksIn(name string) (n int) {
	f, err := os.Open(name)
	if err != nil {
		return 0
	}
	defer f.Close()
	var b [64]byte
	for off := int64(0); ; off += 1 << 20 {
		if _, err := f.ReadAt(b[:], off); err != nil {
			return n
		}
		if b != [64]byte{} {
			n++
		}
	}
}

// TestGetResumesAfterKill: a get that was killed goes on with what is there, and a server that was killed is waited for.
func TestGetResumesAfterKill(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	want := content(t, filepath.Join(from, "f"), 64<<20)
	listen := freeAddr(t)
	server, addr := serveFiles(t, listen, noAuth, from+"=d")
	args := []string{"get", addr, "d/f", to, noAuth, "--provider", "softnic", "--json"}
	partial, whole := filepath.Join(to, ".f.ibx-partial"), filepath.Join(to, "f")
	// kill kills a process when more than so many chunks have arrived, and returns how many there are then.
	kill := func(p *process, more int) int {
		for limit := time.Now().Add(time.Minute); time.Now().Before(limit) && chunksIn(partial) <= more; time.Sleep(time.Millisecond) {
			if _, err := os.Stat(whole); err == nil {
				break
			}
		}
		enginetest.WantOK(t, "Kill", p.cmd.Process.Kill())
		p.end()
		return chunksIn(partial)
	}
	there := 0
	for try := 0; there < 4; try++ { // the whole file may arrive before the process is killed
		if try == 20 {
			t.Fatal("the file has always arrived before the process was killed")
		}
		_ = os.Remove(whole)
		there = kill(begin(t, args...), 4)
	}
	p := begin(t, args...)
	kill(server, there)
	serveFiles(t, listen, noAuth, from+"=d")
	status := p.end()
	if status == exitPeer { // it had not connected when the server was killed
		p = begin(t, args...)
		status = p.end()
	}
	if status != exitOK {
		t.Fatalf("get ended with status %d: %s", status, p.said)
	}
	wantContent(t, whole, want)
	lines := strings.Split(strings.TrimSpace(p.stdout.String()), "\n")
	var last fileReport
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &last); err != nil || last.Kept < int64(there-1)<<20 {
		t.Errorf("get ends with %q, %v, want at least %d chunks that were there already", lines[len(lines)-1], err, there-1)
	}
}

// TestExitCodes: every kind of failure has its exit status, and says what to do.
func TestExitCodes(t *testing.T) {
	token, other := newToken(t, "a secret of this test, long enough"), newToken(t, "another secret, also long enough")
	from, to := t.TempDir(), t.TempDir()
	content(t, filepath.Join(from, "f"), 100)
	server, addr := serveFiles(t, "127.0.0.1:0", noAuth, from+"=d")
	_, closed := serveFiles(t, "127.0.0.1:0", "--token-file", token, from+"=d")
	enginetest.WantOK(t, "Mkdir", os.Mkdir(filepath.Join(to, "dir"), 0o700))
	for _, tt := range []struct {
		args   string
		status int
		want   string
	}{
		{"get ADDR d/f TO", exitOK, ""},
		{"get ADDR d/g TO", exitNotFound, `does not serve "d/g"`},
		{"get ADDR e TO", exitNotFound, `does not serve "e"`},
		{"get ADDR ../f TO", exitNotFound, `does not serve "../f"`},
		{"ls ADDR d/g", exitNotFound, `does not serve "d/g"`},
		{"put ADDR TO/f d/x", exitNotFound, "does not let you write"},
		{"put ADDR TO/f", exitNotFound, "accepts no files"},
		{"put ADDR TO/no d/x", exitFailure, "no such file"},
		{"get ADDR d/f TO/no/f", exitFailure, "no such directory"},
		{"get 127.0.0.1:1 d/f TO", exitPeer, "nothing listens on 127.0.0.1:1"},
		{"get ADDR", exitUsage, "want HOST NAME... [DEST]"},
		{"get ADDR d/f d/f", exitUsage, "serves this name too, and it does not exist here; to copy it as well, add a directory: get ADDR d/f d/f DEST/; to store d/f under this name: get ADDR d/f ./d/f"},
		{"get ADDR d/f d/g TO/new", exitUsage, "several files need a directory as the last argument"},
		{"get ADDR d/f d/f TO", exitUsage, "d/f has the same name"},
		{"get ADDR d/f d/g TO", exitFailure, `does not serve "d/g"`},
		{"get ADDR d/h d/g TO", exitNotFound, `does not serve "d/g"`},
		{"get ADDR d/f TO -n", exitOK, ""},
		{"get ADDR d TO --exclude-from TO/no", exitUsage, "no such file"},
		{"put ADDR TO/f TO/f d/", exitUsage, "has the same name"},
		{"get ADDR d/f TO --sync often", exitUsage, "batch, file or never"},
		{"serve", exitUsage, "--write"},
		{"get LOCKED d/f TO --token-file OTHER", exitFailure, "rejected the token"},
	} {
		args := strings.Fields(strings.NewReplacer("ADDR", addr, "TO", to, "LOCKED", closed, "OTHER", other).Replace(tt.args))
		if !slices.Contains(args, "--token-file") {
			args = append(args, noAuth)
		}
		status, _, stderr := command(t.Context(), args...)
		if want := strings.ReplaceAll(tt.want, "ADDR", addr); status != tt.status || !strings.Contains(stderr, want) {
			t.Errorf("%s: status %d, stderr %q, want %d and %q", tt.args, status, stderr, tt.status, want)
		}
	}
	if status := server.interrupt(); status != exitOK {
		t.Errorf("the server ended with status %d, want %d", status, exitOK)
	}
	for err, want := range map[error]int{
		files.ErrChanged: exitChanged, files.ErrDigest: exitChanged, files.ErrPeerGone: exitPeer, files.ErrDenied: exitNotFound,
		errTerminated: exitTerminated, files.ErrFailed: exitFailure,
	} {
		if got := fileStatus(&files.Error{Op: "get", Err: err}); got != want {
			t.Errorf("%v: status %d, want %d", err, got, want)
		}
	}
}

// TestProgressNotATerminal: without a terminal there is no line that is overwritten, and --json prints objects only.
func TestProgressNotATerminal(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	content(t, filepath.Join(from, "f"), 3<<20)
	_, addr := serveFiles(t, "127.0.0.1:0", noAuth, from+"=d")
	status, out, stderr := command(t.Context(), "get", addr, "d/f", to, noAuth)
	if status != exitOK || stderr != "" || strings.ContainsAny(out, "\r\x1b") || strings.Count(out, "\n") != 1 {
		t.Errorf("get: status %d, stdout %q, stderr %q, want one line", status, out, stderr)
	}
	out = succeed(t, "get", addr, "d/f", to, noAuth, "--json", "--fresh")
	var last fileReport
	for d := json.NewDecoder(strings.NewReader(out)); d.More(); {
		if err := d.Decode(&last); err != nil {
			t.Fatalf("get --json prints %q: %v", out, err)
		}
	}
	if last.Phase != "done" || last.Bytes != 3<<20 || last.Total != 3<<20 || last.Chunks != 3 || last.Error != "" {
		t.Errorf("get --json ends with %+v", last)
	}
	w := fileShow{}
	for _, tt := range []struct {
		status files.Status
		want   string
	}{
		{
			files.Status{Name: "d/model.safetensors", Status: transfer.Status{Bytes: 17_100_000_000, Total: 30_000_000_000, Rate: 3.9e9, Left: 3 * time.Second}},
			"model.safetensors  [#####     ]  57%  17.1/30.0 GB  3.9 GB/s  3s left",
		},
		{
			files.Status{Name: "f", Status: transfer.Status{Phase: transfer.Checking, Bytes: 12_300_000_000, Total: 30_000_000_000, Rate: 6.1e9, Left: 3 * time.Second}},
			"checking  f   41%  12.3/30.0 GB  6.1 GB/s  3s left",
		},
		{
			files.Status{Name: strings.Repeat("x", 100), Status: transfer.Status{Bytes: 5, Total: 10}},
			"..." + strings.Repeat("x", 21) + "  [#####     ]  50%  5/10 B  0 B/s",
		},
	} {
		if got := w.text(tt.status); got != tt.want || len(got) > columns {
			t.Errorf("text(%+v) = %q, want %q", tt.status, got, tt.want)
		}
	}
	rails := []transfer.RailStatus{{Name: "soft0", Rate: 1.9e9}, {Name: "soft1", Rate: 2e9}}
	if got, want := w.text(files.Status{Name: "f", Status: transfer.Status{Bytes: 17_100_000_000, Total: 30_000_000_000, Rate: 3.9e9, Left: 3 * time.Second, Rails: rails}}),
		"f  [#####     ]  57%  17.1/30.0 GB  3.9 GB/s  soft0 1.9 soft1 2.0  3s left"; got != want {
		t.Errorf("text of two rails = %q, want %q", got, want)
	}
	w.lost = time.Now().Add(-4 * time.Second)
	if got, want := w.text(files.Status{Name: "f", Status: transfer.Status{Bytes: 12_000_000_000}}), "f  ... 0 B/s  peer lost 4s ago, trying again (12.0 GB safe)"; got != want {
		t.Errorf("text of a lost peer = %q, want %q", got, want)
	}
}

// TestPrintable: what a peer chooses cannot control the terminal.
func TestPrintable(t *testing.T) {
	var said bytes.Buffer
	(&messageLog{s: streams{err: &said}}).printf("client %s: %v", "x", errors.New("no\nibverbx: all is well\x1b[2J"))
	if got, want := said.String(), `ibverbx: client x: no\nibverbx: all is well\x1b[2J`+"\n"; got != want {
		t.Errorf("printf prints %q, want %q", got, want)
	}
	w := fileShow{}
	if got, want := w.text(files.Status{Name: "d/\x1b[2J", Status: transfer.Status{Bytes: 1, Total: 1}}), `\x1b[2J  [##########] 100%  1/1 B  0 B/s`; got != want {
		t.Errorf("text = %q, want %q", got, want)
	}
}

// TestProgressOfGet: the line of a transfer, as it runs, checks what is there, and waits for a lost peer. All fit 80 columns.
func TestProgressOfGet(t *testing.T) {
	running := files.Status{Name: "models/v7/weights.bin", Status: transfer.Status{Phase: transfer.Moving, Bytes: 17_100_000_000, Total: 30_000_000_000, Rate: 2.5e9, Left: 5200 * time.Millisecond}}
	tree, checking := running, running
	tree.Name = "models/v7"
	tree.Listed, tree.Listing, tree.Sent, tree.Unchanged = 10_000, true, 4000, 12
	checking.Phase = transfer.Checking
	for _, tt := range []struct {
		show   fileShow
		status files.Status
		want   string
	}{
		{fileShow{}, running, "weights.bin  [#####     ]  57%  17.1/30.0 GB  2.5 GB/s  5s left"},
		{fileShow{}, tree, "v7  [#####     ]  57%  17.1/30.0 GB  4,012/10,000+ files  2.5 GB/s  5s left"},
		{fileShow{}, checking, "checking  weights.bin   57%  17.1/30.0 GB  2.5 GB/s  5s left"},
		{fileShow{lost: time.Now().Add(-3 * time.Second)}, running, "weights.bin  ... 0 B/s  peer lost 3s ago, trying again (17.1 GB safe)"},
	} {
		if got := tt.show.text(tt.status); got != tt.want || len(got) > columns {
			t.Errorf("text = %q, want %q", got, tt.want)
		}
	}
}

// TestProgressOfFalseSizes: a peer that says something else than before does not end the process.
func TestProgressOfFalseSizes(t *testing.T) {
	w := fileShow{}
	for _, s := range []files.Status{
		{Name: "f", Status: transfer.Status{Bytes: 1 << 62, Total: 1}},
		{Name: "f", Status: transfer.Status{Bytes: -1, Total: 1}},
		{Name: "f", Status: transfer.Status{Bytes: 1, Total: -1}},
		{Name: "f", Status: transfer.Status{Phase: transfer.Checking, Bytes: 1 << 62, Total: 1}},
	} {
		if got := w.text(s); len(got) > columns {
			t.Errorf("text(%+v) has %d columns, want at most %d", s, len(got), columns)
		}
	}
}

// TestServerNames: servers on hosts with long names have names that are short enough, and different ones.
func TestServerNames(t *testing.T) {
	host := strings.Repeat("h", 64)
	names := map[string]bool{}
	for _, name := range []string{nameOf("node7", ":18510"), nameOf(host, ":18510"), nameOf(host, ":18511"), nameOf(host+"2", ":18510")} {
		if len(name) > 64 || names[name] {
			t.Errorf("got the name %q of %d bytes, want another one, of at most 64", name, len(name))
		}
		names[name] = true
	}
}

// TestLocalDestination: a destination that begins with ./ or ../ is local, even if the host serves a name like it.
func TestLocalDestination(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	want := content(t, filepath.Join(from, "f"), 100)
	_, addr := serveFiles(t, "127.0.0.1:0", noAuth, from+"=d")
	for _, dir := range []string{"d", "x"} {
		enginetest.WantOK(t, "Mkdir", os.Mkdir(filepath.Join(to, dir), 0o700))
	}
	t.Chdir(filepath.Join(to, "x"))
	succeed(t, "get", addr, "d/f", "../d/f", noAuth, "-q")
	wantContent(t, filepath.Join(to, "d/f"), want)
	t.Chdir(to)
	enginetest.WantOK(t, "Remove", os.Remove("d/f"))
	if status, _, stderr := command(t.Context(), "get", addr, "d/f", "d/f", noAuth); status != exitUsage {
		t.Errorf("get to a served name: status %d, %q, want that it is refused", status, stderr)
	}
	succeed(t, "get", addr, "d/f", "./d/f", noAuth, "-q")
	wantContent(t, "d/f", want)
}
