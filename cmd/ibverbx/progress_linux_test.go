package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ibverbx/internal/enginetest"
)

// terminal is a pseudoterminal with a record of its output.
type terminal struct {
	file *os.File      // for the process
	read chan struct{} // closed once all processes have closed the terminal and its output was read

	mu      sync.Mutex
	written bytes.Buffer
}

func newTerminal(t *testing.T, width, height uint16) *terminal {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("this system has no terminals: %v", err)
	}
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Skipf("this system has no terminals: %v", err)
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Skipf("this system has no terminals: %v", err)
	}
	enginetest.WantOK(t, "TIOCSWINSZ", unix.IoctlSetWinsize(int(master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: height, Col: width}))
	file, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("this system has no terminals: %v", err)
	}
	term := &terminal{file: file, read: make(chan struct{})}
	go func() {
		defer close(term.read)
		for b := make([]byte, 4096); ; {
			n, err := master.Read(b)
			if err != nil {
				return
			}
			term.mu.Lock()
			term.written.Write(b[:n])
			term.mu.Unlock()
		}
	}()
	t.Cleanup(func() {
		term.end()
		_ = master.Close()
	})
	return term
}

// end waits until the output of all exited processes was read.
func (x *terminal) end() {
	_ = x.file.Close()
	<-x.read
}

func (x *terminal) text() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.written.String()
}

// shows waits for output after the first n bytes that matches, and returns the offset of the end of the match.
func (x *terminal) shows(t *testing.T, n int, match string) int {
	t.Helper()
	for limit := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		text := x.text()
		if at := regexp.MustCompile(match).FindStringIndex(text[n:]); at != nil {
			return n + at[1]
		}
		if time.Now().After(limit) {
			t.Fatalf("in a minute the terminal did not show %q:\n%q", match, text[max(n, len(text)-400):])
		}
	}
}

// TestPerfProgressFrozenServer: the client's progress line shows its rate. While the server is stopped, it shows a
// stall and the bar does not move. The rate returns when the server resumes. The bar never decreases.
func TestPerfProgressFrozenServer(t *testing.T) {
	server, addr := serve(t, noAuth, "--once")
	x := newTerminal(t, 80, 24)
	cmd := exec.CommandContext(t.Context(), os.Args[0], "perf", addr, noAuth, "-s", "64K,128K", "-D", "30", "--link", "udp")
	cmd.Env = append(cmd.Environ(), asCommand+"=1")
	cmd.Stderr = x.file
	enginetest.WantOK(t, "Start", cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	x.shows(t, 0, `%  [0-9.]+ MiB/s  [0-9]+m?[0-9]*s left`)
	before := len(x.text())
	enginetest.WantOK(t, "Signal", server.cmd.Process.Signal(syscall.SIGSTOP))
	from := x.shows(t, before, `stalled for [0-9]+s`)
	to := x.shows(t, from, `stalled for [0-9]+s`)
	if stalled := x.text()[from:to]; strings.Contains(stalled, "MiB/s") || strings.Contains(stalled, "left") {
		t.Errorf("a stalled test shows a rate: %q", stalled)
	}
	enginetest.WantOK(t, "Signal", server.cmd.Process.Signal(syscall.SIGCONT))
	x.shows(t, to, `MiB/s`)
	enginetest.WantOK(t, "Signal", cmd.Process.Signal(os.Interrupt))
	_ = cmd.Wait()
	if status := cmd.ProcessState.ExitCode(); status != exitInterrupted {
		t.Errorf("the client ended with status %d, want %d", status, exitInterrupted)
	}
	last := 0
	for _, m := range regexp.MustCompile(`([0-9]+)%`).FindAllStringSubmatch(x.text(), -1) {
		n, _ := strconv.Atoi(m[1])
		if n < last {
			t.Errorf("the bar went from %d %% back to %d %%", last, n)
		}
		last = n
	}
}
