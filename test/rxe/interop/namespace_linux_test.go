package interop_test

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"testing"

	"ibverbx/internal/enginetest"

	"golang.org/x/sys/unix"
)

// command runs a command that must succeed.
func command(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v, want success: %s", name, args, err, out)
	}
}

// namespace is a network namespace, by the name that ip netns knows it by.
type namespace string

// newNamespace creates a network namespace, removed at the end of the test.
func newNamespace(t *testing.T, name string) namespace {
	t.Helper()
	command(t, "ip", "netns", "add", name)
	t.Cleanup(func() { command(t, "ip", "netns", "del", name) })
	command(t, "ip", "-n", name, "link", "set", "lo", "up")
	return namespace(name)
}

// inside calls f on a thread in the namespace. Sockets created by f stay there.
func (n namespace) inside(t *testing.T, f func() error) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread exits with the goroutine
		done <- n.enter(f)
	}()
	enginetest.Must(t, <-done)
}

func (n namespace) enter(f func() error) error {
	file, err := os.Open("/run/netns/" + string(n))
	if err != nil {
		return err
	}
	defer file.Close()
	if err := unix.Setns(int(file.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter the namespace %s: %w", n, err)
	}
	return f()
}

// impair makes a network device lose, delay or duplicate outgoing packets, with tc-netem(8) arguments, until
// restore is called or the test finishes. An empty namespace means the test's own.
func impair(t *testing.T, n namespace, dev string, netem ...string) (restore func()) {
	t.Helper()
	var where []string
	if n != "" {
		where = []string{"-n", string(n)}
	}
	qdisc := func(what string) []string {
		return append(where[:len(where):len(where)], "qdisc", what, "dev", dev, "root")
	}
	command(t, "tc", append(append(qdisc("add"), "netem"), netem...)...)
	restore = sync.OnceFunc(func() { command(t, "tc", qdisc("del")...) })
	t.Cleanup(restore)
	return restore
}
