package main

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ibverbx/bootstrap"
	"ibverbx/internal/enginetest"
	"ibverbx/internal/roce"
)

// victim is another user's session, as seen by its attacker, who knows everything except the token.
type victim struct {
	UID   int
	Addr  string // listen address of the server
	Token string // token file
	PIDs  []int
}

// asVictim is the environment variable that turns TestOtherUser into an attacker.
const asVictim = "IBVERBX_TEST_VICTIM"

// account is a user with a session: a server and a client.
type account struct {
	uid            int
	binary         string
	dir            string // temporary directory
	victim         victim
	server, client *process
}

// as returns a command that runs as the user.
func (a *account) as(t *testing.T, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(t.Context(), a.binary, args...)
	cmd.Dir, cmd.Env = "/", append(os.Environ(), "TMPDIR="+a.dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.uid)}}
	return cmd
}

// begin starts the user's session.
func (a *account) begin(t *testing.T, link string) {
	t.Helper()
	binary, token := installed(t, a.uid)
	a.binary, a.dir, a.victim = binary, filepath.Join(filepath.Dir(token), "tmp"), victim{UID: a.uid, Token: token}
	for _, err := range []error{os.Mkdir(a.dir, 0o755), os.Chown(a.dir, a.uid, a.uid)} {
		enginetest.WantOK(t, "Mkdir", err)
	}
	a.server, a.victim.Addr = served(t, start(t, a.as(t, serverArgs(token)...)))
	a.client = start(t, a.as(t, "perf", a.victim.Addr, "--token-file", token, "--link", link, "-s", "64K", "-D", "600", "--check"))
	t.Cleanup(func() { _ = a.client.cmd.Process.Kill(); a.client.end() })
	a.client.prints("TX depth") // the measurement has started
	a.victim.PIDs = []int{a.server.cmd.Process.Pid, a.client.cmd.Process.Pid}
}

// attack starts an attack on a session as this user. The returned function waits for it to finish.
func (a *account) attack(t *testing.T, v victim) (wait func()) {
	t.Helper()
	b, err := json.Marshal(v)
	enginetest.WantOK(t, "Marshal", err)
	cmd := a.as(t, "-test.run", "^TestOtherUser$", "-test.v")
	cmd.Env = append(cmd.Env, asVictim+"="+string(b))
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	enginetest.WantOK(t, "Start", cmd.Start())
	return func() {
		if err := cmd.Wait(); err != nil || !strings.Contains(out.String(), "--- PASS: TestOtherUser") {
			t.Errorf("user %d against user %d: %v\n%s", a.uid, v.UID, err, out.String())
		}
		t.Logf("user %d against user %d: %s", a.uid, v.UID, lineWith(out.String(), "packets"))
	}
}

// TestTwoUsers: two users on a host run a session each, over UDP and shared memory, and attack each other's with every
// means the kernel allows. Neither can read or stop the other's session.
func TestTwoUsers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can start processes of other users")
	}
	for _, link := range []string{"udp", "shm"} {
		t.Run(link, func(t *testing.T) {
			users := [2]*account{{uid: 65532}, {uid: 65531}} // other tests run programs as 65534 and 65533
			for _, a := range users {
				a.begin(t, link)
			}
			first, second := users[0].attack(t, users[1].victim), users[1].attack(t, users[0].victim)
			first()
			second()
			for _, a := range users {
				status, out := a.client.interrupt(), a.client.stdout.String()
				if status != exitInterrupted || lineWith(out, "65536") == "" || strings.Contains(out, ", sealed\n") != (link == "udp") {
					t.Errorf("user %d: status %d, %q, want %d and a row over %s\n%s", a.uid, status, a.client.said, exitInterrupted, link, out)
				}
			}
		})
	}
}

// TestOtherUser is the attacker in TestTwoUsers. It runs as another user.
func TestOtherUser(t *testing.T) {
	var v victim
	if os.Getenv(asVictim) == "" {
		t.Skip("it is a part of TestTwoUsers")
	}
	enginetest.WantOK(t, "Unmarshal", json.Unmarshal([]byte(os.Getenv(asVictim)), &v))
	if _, err := os.ReadFile(v.Token); !errors.Is(err, os.ErrPermission) {
		t.Errorf("read the token: %v, want that it is not permitted", err)
	}
	if _, err := bootstrap.Dial(t.Context(), v.Addr, bootstrap.Config{Token: []byte("another secret of another user")}); !errors.Is(err, bootstrap.ErrAuth) {
		t.Errorf("dial with another token: %v, want %v", err, bootstrap.ErrAuth)
	}
	for _, pid := range v.PIDs {
		for what, err := range map[string]error{
			"read its memory": openOf(pid, "mem"), "read its variables": openOf(pid, "environ"), "list its files": listOf(pid),
			"copy from it": copyOf(pid), "trace it": syscall.PtraceAttach(pid), "end it": syscall.Kill(pid, syscall.SIGKILL),
		} {
			if !errors.Is(err, os.ErrPermission) {
				t.Errorf("process %d, %s: %v, want that it is not permitted", pid, what, err)
			}
		}
	}
	for _, to := range portsOf(t, v.UID) {
		if to.Port() < 20000 { // a NIC, not another attacker
			takeOver(t, v.UID, to)
		}
	}
	sent := 0
	for begin := time.Now(); time.Since(begin) < 300*time.Millisecond; {
		sent += flood(t, v.UID)
	}
	t.Logf("%d packets", sent)
}

func openOf(pid int, name string) error {
	f, err := os.Open(fmt.Sprintf("/proc/%d/%s", pid, name))
	if err == nil {
		_, err = f.Read(make([]byte, 1))
		_ = f.Close()
	}
	return err
}

func listOf(pid int) error {
	_, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	return err
}

func copyOf(pid int) error {
	b := make([]byte, 8)
	local := []unix.Iovec{{Base: &b[0]}}
	local[0].SetLen(len(b))
	_, err := unix.ProcessVMReadv(pid, local, []unix.RemoteIovec{{Base: 0x400000, Len: 8}}, 0)
	return err
}

// portsOf returns a user's UDP ports, which the kernel shows to all users.
func portsOf(t *testing.T, uid int) (ports []netip.AddrPort) {
	b, err := os.ReadFile("/proc/net/udp")
	enginetest.WantOK(t, "ReadFile", err)
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) < 8 || f[7] != strconv.Itoa(uid) {
			continue
		}
		host, port, _ := strings.Cut(f[1], ":")
		ip, err := hex.DecodeString(host)
		n, err2 := strconv.ParseUint(port, 16, 16)
		if err != nil || err2 != nil || len(ip) != 4 {
			t.Fatalf("a line of /proc/net/udp: %q", line)
		}
		ports = append(ports, netip.AddrPortFrom(netip.AddrFrom4([4]byte{ip[3], ip[2], ip[1], ip[0]}), uint16(n)))
	}
	return ports
}

// flood sends packets to a user's ports from its own socket and returns their number.
func flood(t *testing.T, uid int) (sent int) {
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	enginetest.WantOK(t, "ListenUDP", err)
	defer func() { _ = c.Close() }()
	from := netip.MustParseAddrPort(c.LocalAddr().String())
	for _, to := range portsOf(t, uid) {
		flow, err := roce.NewFlow(from, to)
		enginetest.WantOK(t, "NewFlow", err)
		for k := range 200 {
			h := roce.Header{
				DestQPN: rand.Uint32N(1 << 24), PSN: roce.PSN(rand.Uint32N(1 << 24)), PKey: roce.PKeyDefault,
				Opcode: []uint8{roce.RC | roce.OpAck, roce.RC | roce.OpReadRequest, roce.UC | roce.OpWriteOnly}[k%3], Syndrome: roce.NAKRemoteAccess,
			}
			b := make([]byte, roce.DatagramLen(h.Opcode, 0))
			h.Encode(b, 0)
			flow.Seal(b, 0)
			if k%4 == 3 {
				for i := range b {
					b[i] = byte(rand.Uint32())
				}
			}
			if _, err := c.WriteToUDPAddrPort(b, to); err == nil {
				sent++
			}
		}
	}
	time.Sleep(time.Millisecond) // leave CPU time for the sessions
	return sent
}

// takeOver checks that another user's port cannot be bound. The user may have just closed it.
func takeOver(t *testing.T, uid int, to netip.AddrPort) {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	enginetest.WantOK(t, "Socket", err)
	defer func() { _ = unix.Close(s) }()
	for _, opt := range []int{unix.SO_REUSEADDR, unix.SO_REUSEPORT} {
		enginetest.WantOK(t, "SetsockoptInt", unix.SetsockoptInt(s, unix.SOL_SOCKET, opt, 1))
	}
	err = unix.Bind(s, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()})
	if err == nil && slices.Contains(portsOf(t, uid), to) {
		t.Errorf("took over port %v, want that it is in use", to)
	}
}
