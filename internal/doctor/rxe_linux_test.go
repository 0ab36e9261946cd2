package doctor

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// onRXE skips a test that needs the devices of test/rxe.
func onRXE(t *testing.T) {
	t.Helper()
	if os.Getenv("IBVERBX_TEST_RXE") != "1" {
		t.Skip("needs rxe0 on net0 and rxe1 on net1: run test/rxe/all ./internal/doctor")
	}
}

// shell runs a command in the virtual machine.
func shell(t *testing.T, command string) string {
	t.Helper()
	out, err := exec.Command("sh", "-c", command).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v, want success; it says %s", command, err, out)
	}
	return string(out)
}

// settled examines the machine until the findings are as expected, because the kernel handles
// changes of links and addresses asynchronously. Whether librdmacm is installed does not matter here.
func settled(t *testing.T, usable bool, want string) Report {
	t.Helper()
	var r Report
	for range 3000 { // a minute; only a failing test waits that long
		r = Examine(Host())
		if r.Usable == usable && aboutDevices(&r) == want {
			checkReport(t, &r)
			return r
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Fatalf("usable is %v, the findings are\n%swant %v and\n%s", r.Usable, aboutDevices(&r), usable, want)
	return r
}

// aboutDevices returns the findings without the one about librdmacm.
func aboutDevices(r *Report) string {
	return strings.Replace(findings(r), "note library: librdmacm.so.1 is not installed\n", "", 1)
}

func TestRXE(t *testing.T) {
	onRXE(t)
	r := settled(t, true, "")
	if len(r.Devices) != 2 {
		t.Fatalf("the devices are %+v, want rxe0 and rxe1", r.Devices)
	}
	for i := range r.Devices {
		d := &r.Devices[i]
		name, file, netdev, gid := fmt.Sprintf("rxe%d", i), fmt.Sprintf("/dev/infiniband/uverbs%d", i), fmt.Sprintf("net%d", i), fmt.Sprintf("::ffff:10.77.0.%d", i+1)
		if d.Name != name || d.Driver != "rxe" || d.File != file || !d.Usable || len(d.Ports) != 1 {
			t.Errorf("device %d is %+v, want %s, usable, driven by rxe, with file %s and one port", i, d, name, file)
			continue
		}
		p := &d.Ports[0]
		if p.State != "ACTIVE" || p.LinkLayer != "Ethernet" || p.NetDev != netdev || p.MTU != 4096 {
			t.Errorf("the port of %s is %+v, want ACTIVE, Ethernet, %s, MTU 4096", name, p, netdev)
		}
		if len(p.GIDs) != 2 || p.GIDs[1].GID != gid || p.GIDs[1].Type != "RoCE v2" {
			t.Errorf("the GIDs of %s are %+v, want %s of RoCE v2 in row 1", name, p.GIDs, gid)
		}
	}
}

// TestRXEWithoutLink switches off one netdev of two.
func TestRXEWithoutLink(t *testing.T) {
	onRXE(t)
	// The other end of the pair loses its carrier too.
	shell(t, "ip link set net0 down")
	defer settled(t, true, "")
	defer shell(t, "ip link set net0 up")
	settled(t, false, "problem ports: rxe0 port 1 is DOWN (physical state Disabled): its netdev net0 is switched off\n"+
		"problem ports: rxe1 port 1 is DOWN (physical state Polling): its netdev net1 is switched on but has no link\n")
}

// TestRXEMTU compares doctor's RDMA MTU with the kernel's.
func TestRXEMTU(t *testing.T) {
	onRXE(t)
	defer shell(t, "ip link set net0 mtu 4200")
	for _, mtu := range []int{4175, 4176, 1103, 1104} {
		shell(t, fmt.Sprintf("ip link set net0 mtu %d", mtu))
		r := Examine(Host())
		got := fmt.Sprintf("active_mtu:\t\t%d ", r.Devices[0].Ports[0].MTU)
		if said := shell(t, "ibv_devinfo -d rxe0"); !strings.Contains(said, got) {
			t.Errorf("with a netdev MTU of %d doctor computes %q, want the value of ibv_devinfo:\n%s", mtu, got, said)
		}
	}
}

// TestRXEAddresses removes the addresses of a netdev.
func TestRXEAddresses(t *testing.T) {
	onRXE(t)
	shell(t, "ip addr del 10.77.0.1/24 dev net0")
	defer settled(t, true, "")
	defer shell(t, "ip addr add 10.77.0.1/24 dev net0")
	settled(t, true, "warning gids: rxe0 port 1 has link-local GIDs only\n")
}

// TestRXEAsNobody examines the machine as a user with a low limit on locked memory and without
// permission to open a device.
func TestRXEAsNobody(t *testing.T) {
	onRXE(t)
	if os.Getenv("DOCTOR_NOBODY") != "" {
		r := Examine(Host())
		fmt.Printf("usable is %v\n%s", r.Usable, aboutDevices(&r))
		return
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatalf("os.Executable() = %v, want no error", err)
	}
	shell(t, "chmod 0644 /dev/infiniband/uverbs1")
	defer shell(t, "chmod 0666 /dev/infiniband/uverbs1")
	const refused = "access: /dev/infiniband/uverbs1: open /dev/infiniband/uverbs1: permission denied\n"
	for _, tt := range []struct{ limit, want string }{
		{"unlimited", "usable is true\nwarning " + refused},
		{"64", "usable is false\nproblem " + refused + "problem memlock: locked memory is limited to 64 KiB\n"},
	} {
		cmd := exec.Command("sh", "-c", "ulimit -l "+tt.limit+"; exec "+self+" -test.run '^TestRXEAsNobody$'")
		cmd.Env = append(os.Environ(), "DOCTOR_NOBODY=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		got, err := cmd.CombinedOutput()
		if err != nil || !strings.HasPrefix(string(got), tt.want) {
			t.Errorf("with ulimit -l %s the user nobody gets (%v)\n%swant\n%s", tt.limit, err, got, tt.want)
		}
	}
}
