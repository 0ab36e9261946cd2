package main

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ibverbx/bootstrap"
	"ibverbx/internal/enginetest"
	"ibverbx/peer"
)

// mistakes are command lines that fail, with the golden file testdata/mistakes.txt. $DIR is an empty directory with a token file, $SERVE the
// address of a server of files, $PERF that of a server of perf, and $CLOSED one where nothing listens.
const mistakes = `
nosuch
perfs
--nosuch
help nosuch
get
get host
get $SERVE tree
get $SERVE tree $DIR/out --token-file $DIR/nofile
get $SERVE tree $DIR/out --token-file $DIR/other
get $SERVE nothere $DIR/out --token-file $DIR/token
get $SERVE tree/nothere $DIR/out --token-file $DIR/token
get $SERVE tree/file /dev/null --token-file $DIR/token
get $CLOSED tree $DIR/out --token-file $DIR/token
get $PERF tree $DIR/out --token-file $DIR/token
get $SERVE tree --token-file $DIR/token --lanes 1000
get $SERVE tree --token-file $DIR/token --lanes -1
get $SERVE tree --token-file $DIR/token --lanes many
get $SERVE tree --token-file $DIR/token --sync always
get $SERVE tree --token-file $DIR/token --jobs -1
get $SERVE tree --token-file $DIR/token --jobs 0
get 127.0.0.1:99999 tree --token-file $DIR/token
get $SERVE tree --token-file $DIR/token --addr 1.2.3
get $SERVE tree --token-file $DIR/token --provider nosuch
get $SERVE tree --token-file $DIR/token --nosuch
get $SERVE tree --cert $DIR/c
get $SERVE tree/file $DIR/nodir/file --token-file $DIR/token
get $SERVE tree $DIR/token --token-file $DIR/token
get $SERVE tree/file $DIR/token/x --token-file $DIR/token
get $SERVE tree $DIR/out --token-file $DIR/token --transport ud
get $SERVE tree $DIR/out --token-file $DIR/token --metrics $PERF
put
put host
put $SERVE $DIR/tree --token-file $DIR/token
put $SERVE $DIR/nofile incoming/x --token-file $DIR/token
put $SERVE $DIR/tree tree/x --token-file $DIR/token
put $SERVE $DIR/tree nothere/x --token-file $DIR/token
ls
ls a b c
ls $CLOSED --token-file $DIR/token
ls $SERVE nothere --token-file $DIR/token
ls $SERVE --token-file $DIR/other
serve
serve $DIR/nodir --token-file $DIR/token
serve $DIR/tree
serve $DIR/tree $DIR/tree --token-file $DIR/token
serve $DIR/tree --write $DIR/tree --token-file $DIR/token
serve $DIR/tree --token-file $DIR/nofile
serve $DIR/tree --token-file $DIR/token --listen $SERVE
serve $DIR/tree --token-file $DIR/token --listen 127.0.0.1:99999
serve $DIR/tree --token-file $DIR/token --listen 192.0.2.1:0
serve $DIR/tree --token-file $DIR/token --listen 18510
serve $DIR/tree --token-file $DIR/token --allow bob
serve --write $DIR/tree/file --token-file $DIR/token
serve --forward nowhere --token-file $DIR/token
forward
forward host
forward -L 80 host
forward -L 99999:x:1 host
forward -L 0:127.0.0.1 host
forward -L 0:127.0.0.1:1 $CLOSED --token-file $DIR/token
forward -L 0:127.0.0.1:1 $SERVE --token-file $DIR/token
forward -L $SERVE:127.0.0.1:1 $SERVE --token-file $DIR/token
perf -s abc
perf -s 0
perf -n 0
perf -D never
perf -q 0
perf --lanes 0
perf nosuch
perf write a b c
perf --nosuch
perf --memory gpu
perf --kill-rail 7
perf $CLOSED --token-file $DIR/token
perf $SERVE --token-file $DIR/token
perf $PERF --token-file $DIR/other
perf $CLOSED
perf $CLOSED --token-file $DIR/nofile
perf 127.0.0.1:99999 --token-file $DIR/token
perf serve --token-file $DIR/token --listen $PERF
perf serve --token-file $DIR/token --listen 127.0.0.1:99999
perf serve --token-file $DIR/nofile
perf --tclass 999
compare
compare $DIR/token
compare $DIR/tree/file $DIR/tree/file
compare $DIR/nofile $DIR/nofile
compare /dev/null /dev/null
run
run --loss 2 -- true
run --devices x -- true
run --count 17 -- true
run --link tcp -- true
run --impair lose=1% -- true
perf --link tcp
run -- $DIR/noprogram
devices a
doctor a
token
token $DIR/token
cert a b
cert $DIR/certs --host node1:18515
sim --seeds x
sim --scenario nosuch
version a
serve - --token-file $DIR/token
serve --write - --token-file $DIR/token
ls $SERVE --token-file -
compare - -
token -
cert -
perf -n 1 --html -
perf $PERF --token-file $DIR/token --pcap -
serve $DIR/tree --token-file $DIR/token --metrics -
sim --seeds 1 --trace -
perf ""
get "" tree --token-file $DIR/token
serve $DIR/tree ""
`

// TestMistakes: what the tool prints about a mistake, and its exit status. With IBVERBX_TEST_GOLDEN=1 the golden file is written anew: read what has
// changed as a user would.
func TestMistakes(t *testing.T) {
	dir := t.TempDir()
	enginetest.Must(t, os.MkdirAll(filepath.Join(dir, "tree"), 0o755))
	enginetest.Must(t, os.WriteFile(filepath.Join(dir, "tree", "file"), []byte("root:x:0\n"), 0o644))
	for _, name := range []string{"token", "other"} {
		succeed(t, "token", filepath.Join(dir, name))
	}
	token := filepath.Join(dir, "token")
	_, files := served(t, begin(t, "serve", "--listen", "127.0.0.1:0", "--token-file", token, filepath.Join(dir, "tree")))
	_, perf := serve(t, "--token-file", token)
	words := strings.NewReplacer("$DIR", dir, "$SERVE", files, "$PERF", perf, "$CLOSED", closedPort(t))
	var got strings.Builder
	for line := range strings.Lines(strings.TrimPrefix(mistakes, "\n")) {
		line = strings.TrimSuffix(line, "\n")
		args := strings.Fields(words.Replace(line))
		for i, arg := range args {
			args[i] = strings.Trim(arg, `"`)
		}
		status, out, stderr := command(t.Context(), args...)
		fmt.Fprintf(&got, "$ ibverbx %s\n%s%sexit %d\n\n", line, out, stderr, status)
		if status == exitOK {
			t.Errorf("ibverbx %s succeeds", line)
		}
	}
	names := strings.NewReplacer(dir, "$DIR", files, "$SERVE", perf, "$PERF", words.Replace("$CLOSED"), "$CLOSED")
	wantFile(t, "testdata/mistakes.txt", names.Replace(got.String()))
}

// wantFile compares text with a golden file.
func wantFile(t *testing.T, name, got string) {
	t.Helper()
	if os.Getenv("IBVERBX_TEST_GOLDEN") != "" {
		enginetest.Must(t, os.WriteFile(name, []byte(got), 0o644))
	}
	want, err := os.ReadFile(name)
	enginetest.Must(t, err)
	if got != string(want) {
		t.Errorf("the text differs from %s:\n%s", name, got)
	}
}

// closedPort is an address where nothing listens.
func closedPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	enginetest.Must(t, err)
	enginetest.Must(t, l.Close())
	return l.Addr().String()
}

// TestUnknownHost: an error of the resolver names the host, and not the address of the resolver.
func TestUnknownHost(t *testing.T) {
	dns := &net.DNSError{Err: "no such host", Name: "nosuchhost", Server: "192.0.2.1:53", IsNotFound: true}
	err := fmt.Errorf("dial: %w", &net.OpError{Op: "dial", Net: "udp", Err: dns})
	f := &fileFlags{}
	for _, got := range []error{fileServer.explainDial("nosuchhost:18510", "", err), f.explainOpen("nosuchhost:18510", err)} {
		if text := got.Error(); !strings.Contains(text, "cannot resolve host nosuchhost: no such host") || strings.Contains(text, "192.0.2.1") {
			t.Errorf("the error is %q, want the host and the cause alone", text)
		}
	}
}

// TestOtherServer: at the port of another program, the error does not blame the credentials.
func TestOtherServer(t *testing.T) {
	token := newToken(t, "a secret of this test, long enough")
	plain, secure := httptest.NewServer(nil), httptest.NewUnstartedServer(nil)
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.StartTLS()
	t.Cleanup(plain.Close)
	t.Cleanup(secure.Close)
	session, err := peer.Listen(t.Context(), "127.0.0.1:0", peer.Config{Auth: bootstrap.Config{TokenFile: token}})
	enginetest.Must(t, err)
	t.Cleanup(func() { _ = session.Close() })
	go func() { _, _ = session.Accept(t.Context()) }()
	for name, addr := range map[string]string{
		"http": plain.Listener.Addr().String(), "https": secure.Listener.Addr().String(), "peer.Listen": session.Addr().String(),
	} {
		status, _, stderr := command(t.Context(), "ls", addr, "--token-file", token)
		if want := addr + ` does not speak the protocol of "ibverbx serve"; check the port (default 18510)`; status != exitPeer || !strings.Contains(stderr, want) {
			t.Errorf("ls at the port of %s exits with %d and prints %q, want %d and %q", name, status, stderr, exitPeer, want)
		}
	}
	for cause, want := range map[error]string{
		bootstrap.ErrTimeout: `node1:22 accepted the connection, but did not respond; is "ibverbx serve" running there?`,
		bootstrap.ErrBusy:    "node1:22 has too many clients, or this host sent too many wrong tokens; try again in a few seconds",
	} {
		if err := fileServer.explainDial("node1:22", token, fmt.Errorf("dial: %w", cause)); err.Error() != want {
			t.Errorf("%v: the error is %q, want %q", cause, err, want)
		}
	}
	dir := t.TempDir()
	succeed(t, "cert", dir, "--host", "127.0.0.1")
	_, addr := served(t, begin(t, "serve", "--listen", "127.0.0.1:0", "--ca", filepath.Join(dir, "ca.pem"), "--cert", filepath.Join(dir, "server.pem"),
		"--key", filepath.Join(dir, "server.key"), dir))
	want := "127.0.0.1 requires a certificate, not a token"
	if status, _, stderr := command(t.Context(), "ls", addr, "--token-file", token); status != exitFailure || !strings.Contains(stderr, want) {
		t.Errorf("ls with a token at a server with certificates exits with %d and prints %q, want %d and %q", status, stderr, exitFailure, want)
	}
}

// TestAllow: --allow admits the named client only. Others learn that they are not authorized, not that their token is wrong.
func TestAllow(t *testing.T) {
	dir, other := t.TempDir(), filepath.Join(t.TempDir(), "stranger")
	for _, name := range []string{filepath.Join(dir, "bob"), filepath.Join(dir, "eve"), other} {
		succeed(t, "token", name)
	}
	_, addr := served(t, begin(t, "serve", "--listen", "127.0.0.1:0", "--token-dir", dir, "--allow", "bob", t.TempDir()))
	succeed(t, "ls", addr, "--token-file", filepath.Join(dir, "bob"))
	for token, want := range map[string]string{
		filepath.Join(dir, "eve"): `does not authorize this client: "ibverbx serve" there needs --allow with its name`, other: "rejected the token",
	} {
		if status, _, stderr := command(t.Context(), "ls", addr, "--token-file", token); status != exitFailure || !strings.Contains(stderr, want) {
			t.Errorf("ls with %s exits with %d and prints %q, want %d and %q", token, status, stderr, exitFailure, want)
		}
	}
}
