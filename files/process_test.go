package files

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ibverbx/internal/chunk"
	"ibverbx/internal/enginetest"
	"ibverbx/internal/enginetest/nodetest"
	"ibverbx/node"
	"ibverbx/transfer"
)

// asServer runs the test binary as a process that exports a directory, and asClient as one that gets a file
// from it.
const (
	asServer  = "IBVERBX_TEST_SERVES"
	asClient  = "IBVERBX_TEST_GETS"
	asPartner = "IBVERBX_TEST_ADDR"
	asSealed  = "IBVERBX_TEST_SEALED"
)

// processNode returns the Node of a test process, with a software NIC on UDP. closeAll closes everything.
func processNode(name, listen string, sealed bool, exports ...ExportConfig) (n *node.Node, f *Engine, closeAll func() error, err error) {
	cfg := (&nodetest.Host{}).Config()
	cfg.Auth.Name, cfg.Listen, cfg.Unsealed = name, listen, !sealed
	if n, err = node.New(context.Background(), cfg); err != nil {
		return nil, nil, nil, err
	}
	e, err := transfer.New(transfer.Config{Node: n})
	if err != nil {
		return nil, nil, nil, err
	}
	f, err = New(Config{Transfer: e, Exports: exports})
	return n, f, func() error {
		return errors.Join(f.Close(context.Background()), e.Close(context.Background()), n.Close())
	}, err
}

// serveDir is the main function of a process that exports a directory as "d", through an Engine and HTTP,
// until EOF on standard input. Its first output line holds the addresses. For each line of input, it prints the number of sent bytes.
func serveDir(dir string) int {
	if name := os.Getenv(asClient); name != "" {
		return getTo(dir, name)
	}
	n, f, _, err := processNode("server", os.Getenv(asPartner), os.Getenv(asSealed) != "", ExportConfig{Name: "d", Path: dir, DefaultAccess: Read | Write})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	files := http.FileServer(http.Dir(dir))
	plain, secure := httptest.NewServer(files), httptest.NewTLSServer(files)
	fmt.Println(n.Addr(), plain.URL, secure.URL)
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		fmt.Println(f.Stats().BytesSent)
	}
	return 0
}

// getTo is the main function of a process that gets a file, or puts one if its name begins with a slash. It
// prints the numbers of reused bytes, of transferred files and of sent bytes.
func getTo(dir, name string) int {
	_, f, closeAll, err := processNode("", "", false)
	if err == nil {
		p, lost := f.Peer(context.Background(), os.Getenv(asPartner))
		for lost != nil { // the server is restarting
			time.Sleep(10 * time.Millisecond)
			p, lost = f.Peer(context.Background(), os.Getenv(asPartner))
		}
		begin := func() *Transfer {
			if filepath.IsAbs(name) {
				return p.Put(name, "d/put", TransferConfig{})
			}
			return p.Get(name, dir, TransferConfig{})
		}
		x, start := begin(), time.Now()
		err = x.Wait(context.Background())
		for errors.Is(err, ErrBusy) && time.Since(start) < 20*time.Second { // the server has not yet noticed that the process before was killed
			time.Sleep(10 * time.Millisecond)
			x = begin()
			err = x.Wait(context.Background())
		}
		fmt.Println(x.Status().BytesReused, x.Status().Sent, f.Stats().BytesSent)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	_ = closeAll()
	return 0
}

// child is a process of these tests.
type child struct {
	cmd                 *exec.Cmd
	stdin               io.WriteCloser
	err                 error // of the process, valid when ended is closed
	ended               chan struct{}
	out                 bytes.Buffer  // of a client, valid when ended is closed
	lines               *bufio.Reader // of a server
	addr, plain, secure string
}

// spawn starts a process.
func spawn(t testing.TB, env ...string) *child {
	t.Helper()
	c := &child{cmd: exec.Command(os.Args[0]), ended: make(chan struct{})}
	c.cmd.Env = append(append(os.Environ(), "GORACE=atexit_sleep_ms=0"), env...)
	c.cmd.Stderr = os.Stderr
	var err error
	c.stdin, err = c.cmd.StdinPipe()
	wantOK(t, "StdinPipe", err)
	if strings.Contains(strings.Join(env, " "), asClient) {
		c.cmd.Stdout = &c.out
		wantOK(t, "Start", c.cmd.Start())
		t.Cleanup(c.kill)
	} else {
		out, err := c.cmd.StdoutPipe()
		wantOK(t, "StdoutPipe", err)
		wantOK(t, "Start", c.cmd.Start())
		t.Cleanup(c.kill)
		c.lines = bufio.NewReader(out)
		line, err := c.lines.ReadString('\n')
		wantOK(t, "the first line of a server", err)
		_, err = fmt.Sscan(line, &c.addr, &c.plain, &c.secure)
		wantOK(t, "the addresses of a server", err)
	}
	go func() {
		c.err = c.cmd.Wait()
		close(c.ended)
	}()
	return c
}

// sent returns the number of bytes that a server has sent.
func (c *child) sent(t testing.TB) (n int64) {
	t.Helper()
	_, err := fmt.Fprintln(c.stdin)
	wantOK(t, "Fprintln", err)
	_, err = fmt.Fscanln(c.lines, &n)
	wantOK(t, "the sent bytes of a server", err)
	return n
}

// kill kills the process and waits for its exit.
func (c *child) kill() {
	_ = c.cmd.Process.Kill()
	<-c.ended
	_ = c.stdin.Close()
}

// awaitChunks waits until more than more chunks of a file have arrived, or the process has exited. It returns
// their number.
func (c *child) awaitChunks(t testing.TB, file string, more int) (n int) {
	t.Helper()
	eventually(t, "some of a file has arrived", func() bool {
		n = chunksIn(file)
		select {
		case <-c.ended:
			return true
		default:
			return n > more
		}
	})
	return n
}

// chunksIn returns the number of chunks that have arrived, at least in part, in a file's partial file. Their
// first bytes are not zero.
func chunksIn(file string) (n int) {
	f, err := os.Open(filepath.Join(filepath.Dir(file), "."+filepath.Base(file)+".ibx-partial"))
	if err != nil {
		return 0
	}
	defer f.Close()
	var b [64]byte
	for off := int64(0); ; off += chunk.Size {
		if _, err := f.ReadAt(b[:], off); err != nil {
			return n
		}
		if b != [64]byte{} {
			n++
		}
	}
}

// freeAddr returns an address that a server can use again after its exit, see network.start.
func freeAddr(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", fmt.Sprintf("127.%d.%d.%d:0", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254)))
	wantOK(t, "Listen", err)
	defer func() { wantOK(t, "Close", l.Close()) }()
	return l.Addr().String()
}

// TestResumeAfterKill9 kills the receiving or the sending process at random moments of Get and Put.
// The next attempt resumes from the stored data, and the final file is correct.
func TestResumeAfterKill9(t *testing.T) {
	dir, to := t.TempDir(), t.TempDir()
	want := make([]byte, 32*chunk.Size+99)
	fill(want, 1)
	writeFile(t, filepath.Join(dir, "f"), want)
	writeFile(t, filepath.Join(to, "put"), want)
	addr := freeAddr(t)
	server := spawn(t, asServer+"="+dir, asPartner+"="+addr)
	for _, c := range []struct{ name, result string }{
		{"d/f", filepath.Join(to, "f")},
		{filepath.Join(to, "put"), filepath.Join(dir, "put")},
	} {
		there := 0
		for kills := 0; ; kills++ {
			client := spawn(t, asServer+"="+to, asClient+"="+c.name, asPartner+"="+server.addr)
			if kills < 4 {
				client.awaitChunks(t, c.result, there+2)
				time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond)
				if kills%2 == 0 { // the next attempt resumes
					client.kill()
					there = chunksIn(c.result)
					continue
				}
				server.kill()
				server = spawn(t, asServer+"="+dir, asPartner+"="+addr)
			}
			if <-client.ended; client.err != nil {
				t.Errorf("%s: the process that was not killed: %v", c.name, client.err)
			}
			wantFile(t, c.result, want)
			var kept int
			if _, err := fmt.Sscan(client.out.String(), &kept); err != nil || kept < (there-1)*chunk.Size {
				t.Errorf("%s: %d bytes were there already, %v, want at least %d chunks", c.name, kept, err, there-1)
			}
			there = 0
			if kills >= 4 {
				break
			}
			wantOK(t, "Remove", os.Remove(c.result))
		}
	}
}

// TestTreeAfterKill9 kills the receiving or the sending process at random moments of Get and Put of a tree. The last attempt
// completes the tree, removes temporary files, and does not send complete files again.
func TestTreeAfterKill9(t *testing.T) {
	dir, to := memoryDir(t), memoryDir(t)
	want := map[string][]byte{}
	for i := range 3000 {
		want[fmt.Sprintf("%02d/%04d", i%30, i)] = fmt.Appendf(nil, "file %d", i)
	}
	for name, b := range want {
		writeFile(t, filepath.Join(dir, "t", name), b)
		writeFile(t, filepath.Join(to, "put", name), b)
	}
	complete := func(top string) (n int) {
		for name := range want {
			if _, err := os.Lstat(filepath.Join(top, name)); err == nil {
				n++
			}
		}
		return n
	}
	addr := freeAddr(t)
	server := spawn(t, asServer+"="+dir, asPartner+"="+addr)
	for _, c := range []struct{ name, to, result string }{
		{"d/t", filepath.Join(to, "t"), filepath.Join(to, "t")},
		{filepath.Join(to, "put"), to, filepath.Join(dir, "put")},
	} {
		for kills := range 4 {
			client := spawn(t, asServer+"="+c.to, asClient+"="+c.name, asPartner+"="+addr)
			first := filepath.Join(c.result, "*")
			eventually(t, "a directory is there", func() bool {
				list, _ := filepath.Glob(first)
				return len(list) > kills
			})
			time.Sleep(time.Duration(rand.IntN(10)) * time.Millisecond)
			if kills%2 == 0 {
				client.kill()
				continue
			}
			server.kill()
			client.kill()
			server = spawn(t, asServer+"="+dir, asPartner+"="+addr)
		}
		there := complete(c.result)
		client := spawn(t, asServer+"="+c.to, asClient+"="+c.name, asPartner+"="+addr)
		if <-client.ended; client.err != nil {
			t.Errorf("%s: the process that was not killed: %v", c.name, client.err)
		}
		for name, b := range want {
			wantBytes(t, filepath.Join(c.result, name), b)
		}
		wantOK(t, "WalkDir", filepath.WalkDir(c.result, func(name string, e fs.DirEntry, err error) error {
			if strings.HasPrefix(e.Name(), ".") {
				t.Errorf("there is %s", name)
			}
			return err
		}))
		var kept, sent int
		if _, err := fmt.Sscan(client.out.String(), &kept, &sent); err != nil || sent > len(want)-there {
			t.Errorf("%s: %d files were sent (%v), want at most %d", c.name, sent, err, len(want)-there)
		}
	}
}

// memoryDir returns a directory for many files, in memory if possible: creating thousands of files on a disk takes seconds of CPU time.
func memoryDir(tb testing.TB) string {
	tb.Helper()
	if dir, err := os.MkdirTemp("/dev/shm", "ibverbx"); err == nil {
		tb.Cleanup(func() { _ = os.RemoveAll(dir) })
		return dir
	}
	return tb.TempDir()
}

// BenchmarkGetFile compares Get between two processes over UDP with other tools fetching the same
// file, alternately.
func BenchmarkGetFile(b *testing.B) {
	const size = 256 << 20
	for _, c := range []struct {
		name   string
		sealed bool
		other  func(b *testing.B, server *child, dir string) (get func(dest string))
	}{
		{"against=http", false, func(b *testing.B, server *child, _ string) func(string) { return httpGetter(b, server.plain) }},
		{"against=https/sealed", true, func(b *testing.B, server *child, _ string) func(string) { return httpGetter(b, server.secure) }},
		{"against=scp/sealed", true, func(b *testing.B, _ *child, dir string) func(string) { return scpGetter(b, dir) }},
	} {
		b.Run(c.name, func(b *testing.B) {
			dir, to := b.TempDir(), memoryDir(b)
			content := make([]byte, size)
			fill(content, 1)
			writeFile(b, filepath.Join(dir, "f"), content)
			env := []string{asServer + "=" + dir, asPartner + "=127.0.0.1:0"}
			if c.sealed {
				env = append(env, asSealed+"=1")
			}
			server := spawn(b, env...)
			_, f, closeAll, err := processNode("client", "", c.sealed)
			wantOK(b, "New", err)
			defer func() { wantOK(b, "Close", closeAll()) }()
			p, err := f.Peer(soon(b), server.addr)
			wantOK(b, "Peer", err)
			other := c.other(b, server, dir)
			enginetest.Alternate(b, size, func() { other(filepath.Join(to, "other")) }, func() {
				wantOK(b, "Get", p.Get("d/f", filepath.Join(to, "rdma"), TransferConfig{Fresh: true}).Wait(soon(b)))
			})
		})
	}
}

// httpGetter returns a function that downloads the file f of a server of net/http.
func httpGetter(b *testing.B, url string) func(dest string) {
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	b.Cleanup(client.CloseIdleConnections)
	return func(dest string) { wantOK(b, "download", httpGet(client, url+"/f", dest)) }
}

// scpGetter starts an SSH server and returns a function that copies the file f of a directory with scp.
func scpGetter(b *testing.B, dir string) func(dest string) {
	sshd, err := exec.LookPath("/usr/sbin/sshd")
	if _, missing := exec.LookPath("scp"); err != nil || missing != nil {
		b.Skip("needs OpenSSH's sshd and scp (Debian: openssh-server)")
	}
	_ = os.Mkdir("/run/sshd", 0o755) // a daemon that runs as root locks its children in this directory
	key := filepath.Join(b.TempDir(), "key")
	out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key).CombinedOutput()
	wantOK(b, "ssh-keygen: "+string(out), err)
	public, err := os.ReadFile(key + ".pub")
	wantOK(b, "ReadFile", err)
	writeFile(b, key+".known", append([]byte("* "), public...))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	wantOK(b, "Listen", err)
	port := fmt.Sprint(l.Addr().(*net.TCPAddr).Port)
	wantOK(b, "Close", l.Close())
	daemon := exec.Command(sshd, "-D", "-e", "-f", "/dev/null", "-h", key, "-p", port, "-o", "ListenAddress=127.0.0.1", "-o", "LogLevel=ERROR",
		"-o", "AuthorizedKeysFile="+key+".pub", "-o", "StrictModes=no", "-o", "PidFile=none", "-o", "Subsystem=sftp internal-sftp")
	daemon.Stderr = os.Stderr
	wantOK(b, "sshd", daemon.Start())
	b.Cleanup(func() { _, _ = daemon.Process.Kill(), daemon.Wait() })
	args := []string{
		"-q", "-F", "/dev/null", "-P", port, "-i", key, "-o", "UserKnownHostsFile=" + key + ".known", "-o", "IdentitiesOnly=yes",
		"-o", "BatchMode=yes", "-o", "ConnectionAttempts=100",
	}
	get := func(dest string) ([]byte, error) {
		return exec.Command("scp", append(args, "127.0.0.1:"+filepath.Join(dir, "f"), dest)...).CombinedOutput()
	}
	if out, err := get(filepath.Join(b.TempDir(), "first")); err != nil {
		b.Skipf("scp from this host fails: %v: %s", err, out)
	}
	return func(dest string) {
		out, err := get(dest)
		wantOK(b, "scp: "+string(out), err)
	}
}

func httpGet(c *http.Client, url, dest string) error {
	r, err := c.Get(url)
	if err != nil {
		return err
	}
	f, err := os.Create(dest)
	if err != nil {
		return errors.Join(err, r.Body.Close())
	}
	_, err = io.Copy(f, r.Body)
	return errors.Join(err, r.Body.Close(), f.Close())
}
