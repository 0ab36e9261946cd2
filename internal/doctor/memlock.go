package doctor

import (
	"fmt"
	"strconv"
	"strings"
)

// Memlock is the limit on locked memory. Registered memory is locked.
type Memlock struct {
	Soft int64 `json:"soft_bytes"` // -1 is unlimited
	Hard int64 `json:"hard_bytes"` // -1 is unlimited

	// Exempt reports whether this process has CAP_IPC_LOCK, which lifts the limit.
	Exempt bool `json:"exempt"`

	known bool // the limits could be read
}

// Below stopBytes even the queues of a few queue pairs do not fit. Below smallBytes the buffers
// of most programs do not fit.
const (
	stopBytes  = 1 << 20
	smallBytes = 1 << 30
)

// readMemlock reads the limits and the capabilities of this process.
func (e *exam) readMemlock() {
	for line := range strings.Lines(e.text("/proc/self/limits")) {
		if rest, ok := strings.CutPrefix(line, "Max locked memory"); ok {
			if f := strings.Fields(rest); len(f) >= 2 {
				e.Memlock.Soft, e.Memlock.Hard, e.Memlock.known = limit(f[0]), limit(f[1]), true
			}
		}
	}
	for line := range strings.Lines(e.text("/proc/self/status")) {
		if rest, ok := strings.CutPrefix(line, "CapEff:"); ok {
			const ipcLock = 14 // CAP_IPC_LOCK
			caps, _ := strconv.ParseUint(strings.TrimSpace(rest), 16, 64)
			e.Memlock.Exempt = caps>>ipcLock&1 != 0 && e.firstUserNamespace()
		}
	}
}

// limit parses a limit as /proc shows it.
func limit(s string) int64 {
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		return n
	}
	return -1
}

// firstUserNamespace reports whether this process is in the initial user namespace.
// Capabilities in any other one do not lift the machine's limits.
func (e *exam) firstUserNamespace() bool {
	f := strings.Fields(e.text("/proc/self/uid_map"))
	return len(f) == 3 && f[0] == "0" && f[1] == "0" && f[2] == "4294967295"
}

// judgeMemlock reports a limit that will make memory registration fail.
func (e *exam) judgeMemlock() {
	m := &e.Memlock
	switch {
	case !m.known:
		e.report("memlock", Note, "the limit on locked memory is not known: /proc/self/limits cannot be read",
			"If the limit is low, memory registration fails with ENOMEM.", "ulimit -l prints it.")
		return
	case m.Soft < 0:
		e.ok("memlock", "locked memory is not limited")
		return
	case m.Exempt:
		e.ok("memlock", "locked memory is limited to %s, but this process is exempt (CAP_IPC_LOCK)", bytesText(m.Soft))
		return
	case m.Soft >= smallBytes:
		e.ok("memlock", "locked memory is limited to %s", bytesText(m.Soft))
		return
	}
	level := Warning
	means := "Registering more memory than that fails with ENOMEM (\"cannot allocate memory\"), even if memory is free."
	if m.Soft < stopBytes {
		level = Problem
		means = "Even the queues of a queue pair do not fit. Everything fails with ENOMEM (\"cannot allocate memory\")."
	}
	e.report("memlock", level, "locked memory is limited to "+bytesText(m.Soft), means, e.raise()...)
}

// raise returns the steps to raise the limit where this process runs.
func (e *exam) raise() []string {
	switch e.System.Container {
	case "":
	case "kubernetes":
		return []string{
			"Raise the limit of the container runtime on the node: LimitMEMLOCK=infinity in the unit of containerd or CRI-O, then restart it.",
			"Or give the container the capability IPC_LOCK and do not use a user namespace.",
		}
	default:
		return []string{"Start the container with --ulimit memlock=-1."}
	}
	var do []string
	if e.Memlock.Hard < 0 {
		do = append(do, "In this shell: ulimit -l unlimited")
	}
	return append(do,
		`For people who log in: echo '* - memlock unlimited' > /etc/security/limits.d/rdma.conf as root, and log in again.`,
		"For a service: LimitMEMLOCK=infinity in its systemd unit.")
}

// bytesText formats a number of bytes for people.
func bytesText(n int64) string {
	for _, u := range []struct {
		bytes int64
		name  string
	}{{1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}} {
		if n >= u.bytes {
			return fmt.Sprintf("%s %s", strconv.FormatFloat(float64(n)/float64(u.bytes), 'f', -1, 64), u.name)
		}
	}
	return fmt.Sprintf("%d bytes", n)
}
