package doctor

import (
	"bytes"
	"encoding/binary"
	"os"
	"slices"
	"strconv"
	"testing"
)

func TestContainer(t *testing.T) {
	for _, tt := range []struct {
		name    string
		machine machine
		want    string
	}{
		{"none", bare(), ""},
		{"environment", bare().environment("KUBERNETES_SERVICE_HOST", "10.96.0.1"), "kubernetes"},
		{"service account", bare().with(map[string]string{"/var/run/secrets/kubernetes.io/serviceaccount/token": "x"}), "kubernetes"},
		{"cgroup of a pod", bare().with(map[string]string{"/proc/self/cgroup": "0::/kubepods.slice/pod1\n"}), "kubernetes"},
		{"cgroup of docker", bare().with(map[string]string{"/proc/1/cgroup": "12:cpu:/docker/0123\n"}), "docker"},
		{"docker", bare().with(map[string]string{"/.dockerenv": ""}), "docker"},
		{"podman", bare().with(map[string]string{"/run/.containerenv": ""}), "podman"},
		{"cgroup of lxc", bare().with(map[string]string{"/proc/1/cgroup": "0::/lxc.payload.a\n"}), "lxc"},
		{"systemd", bare().with(map[string]string{"/run/systemd/container": "systemd-nspawn\n"}), "systemd-nspawn"},
		{"variable", bare().environment("container", "oci"), "oci"},
	} {
		if got := Examine(tt.machine.machine()).System.Container; got != tt.want {
			t.Errorf("%s: the container is %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestDriver(t *testing.T) {
	const dir = "/sys/class/infiniband/dev0/"
	for _, tt := range []struct{ file, text, want string }{
		{"device/driver", "-> ../../drivers/mlx5_core", "mlx5"},
		{"device/driver", "-> ../../drivers/ice", "irdma"},
		{"device/driver", "-> ../../drivers/efa", "efa"},
		{"node_desc", "rxe\n", "rxe"},
		{"node_desc", "somebody", ""},
	} {
		r := Examine(bare().with(map[string]string{dir + "ports/1/state": "4: ACTIVE", dir + tt.file: tt.text}).machine())
		if len(r.Devices) != 1 || r.Devices[0].Driver != tt.want {
			t.Errorf("with %s %q the devices are %+v, want one with driver %q", tt.file, tt.text, r.Devices, tt.want)
		}
	}
}

// TestPCI checks which NICs are known, and their modules.
func TestPCI(t *testing.T) {
	for _, tt := range []struct{ class, vendor, device, want string }{
		{"0x020000", "0x15b3", "0x101d", "mlx5_ib"},
		{"0x020700", "0x15b3", "0x1003", "mlx4_ib"},
		{"0x020000", "0x1d0f", "0xefa2", "efa"},
		{"0x020000", "0x1d0f", "0xec20", ""}, // ENA
		{"0x020000", "0x8086", "0x1592", "irdma"},
		{"0x020000", "0x8086", "0x100e", ""}, // an old Intel NIC
		{"0x060400", "0x15b3", "0x1976", ""}, // a bridge
	} {
		dir := "/sys/bus/pci/devices/0000:01:00.0/"
		e := exam{m: bare().with(map[string]string{dir + "class": tt.class, dir + "vendor": tt.vendor, dir + "device": tt.device}).machine()}
		got := ""
		for _, n := range e.pciNICs() {
			got += n.module
		}
		if got != tt.want {
			t.Errorf("class %s, vendor %s, device %s: the module is %q, want %q", tt.class, tt.vendor, tt.device, got, tt.want)
		}
	}
}

// TestNetDev checks the sources for a port's netdev other than its GIDs.
func TestNetDev(t *testing.T) {
	const dir = "/sys/class/infiniband/dev0/"
	port := map[string]string{dir + "ports/2/state": "1: DOWN", dir + "ports/2/link_layer": "Ethernet"}
	for _, tt := range []struct {
		files map[string]string
		want  string
	}{
		{map[string]string{dir + "parent": "eth7\n"}, "eth7"},
		{map[string]string{dir + "device/net/eth0/dev_port": "0\n", dir + "device/net/eth1/dev_port": "1\n"}, "eth1"},
		{map[string]string{dir + "device/net/eth0/dev_port": "0\n"}, ""},
		{map[string]string{dir + "parent": "eth7\n", dir + "ports/2/link_layer": "InfiniBand"}, ""},
	} {
		r := Examine(bare().with(port).with(tt.files).machine())
		if got := r.Devices[0].Ports[0].NetDev; got != tt.want {
			t.Errorf("with %v the netdev is %q, want %q", tt.files, got, tt.want)
		}
	}
}

func TestRDMAMTU(t *testing.T) {
	for netdev, want := range map[int]int{9000: 4096, 4200: 4096, 4192: 4096, 4191: 2048, 2144: 2048, 1500: 1024, 1119: 512, 576: 256, 300: 0} {
		if got := rdmaMTU(netdev, "mlx5"); got != want {
			t.Errorf("rdmaMTU(%d, mlx5) = %d, want %d", netdev, got, want)
		}
	}
	for netdev, want := range map[int]int{4176: 4096, 4175: 2048} {
		if got := rdmaMTU(netdev, "rxe"); got != want {
			t.Errorf("rdmaMTU(%d, rxe) = %d, want %d", netdev, got, want)
		}
	}
}

// TestGIDTable checks that holes are skipped, and that a long empty table is not read to its
// end.
func TestGIDTable(t *testing.T) {
	const port = "/sys/class/infiniband/mlx5_0/ports/1/"
	m := mlx5()
	for row := range 1024 {
		gid := "0000:0000:0000:0000:0000:0000:0000:0000\n"
		if row == 3 || row == 3+maxHole || row == 1000 {
			gid = "2001:0db8:0000:0000:0000:0000:0000:0001\n"
		}
		m.files[port+"gids/"+strconv.Itoa(row)] = gid
	}
	var rows []int
	r := Examine(m.machine())
	for _, g := range r.Devices[0].Ports[0].GIDs {
		rows = append(rows, g.Index)
	}
	if want := []int{3, 3 + maxHole}; !slices.Equal(rows, want) {
		t.Errorf("the rows in use are %v, want %v", rows, want)
	}
}

// TestRoutableGID checks that IPv4 is preferred to IPv6, and RoCE v2 to everything else.
func TestRoutableGID(t *testing.T) {
	const port = "/sys/class/infiniband/mlx5_0/ports/1/"
	global := map[string]string{
		port + "gids/0": "2001:0db8:0000:0000:0000:0000:0000:0001\n", port + "gid_attrs/types/0": "RoCE v2\n",
	}
	for _, tt := range []struct {
		machine machine
		want    string
	}{
		{mlx5(), "mlx5_0 port 1 has a routable GID: row 3, ::ffff:192.0.2.1, RoCE v2"},
		{mlx5().with(global), "mlx5_0 port 1 has a routable GID: row 3, ::ffff:192.0.2.1, RoCE v2"},
		{mlx5().with(global).noRows(2, 3), "mlx5_0 port 1 has a routable GID: row 0, 2001:db8::1, RoCE v2"},
	} {
		r := Examine(tt.machine.machine())
		i := slices.IndexFunc(r.Findings, func(f Finding) bool { return f.Check == "gids" })
		if i < 0 || r.Findings[i].Found != tt.want {
			t.Errorf("the findings are %+v, want %q", r.Findings, tt.want)
		}
	}
}

func TestBytesText(t *testing.T) {
	for n, want := range map[int64]string{0: "0 bytes", 1023: "1023 bytes", 65536: "64 KiB", 8 << 20: "8 MiB", 3 << 29: "1.5 GiB"} {
		if got := bytesText(n); got != want {
			t.Errorf("bytesText(%d) = %q, want %q", n, got, want)
		}
	}
}

// TestFindLibrary checks the search order: variable, cache, default directories.
func TestFindLibrary(t *testing.T) {
	everywhere := bare().with(map[string]string{
		"/opt/rdma/lib/" + soname: "\x7fELF", "/opt/cached/" + soname: "\x7fELF", "/usr/lib64/" + soname: "\x7fELF",
		"/etc/ld.so.cache": string(encodeCache([2]string{soname, "/opt/removed/" + soname}, [2]string{soname, "/opt/cached/" + soname})),
	})
	for _, tt := range []struct {
		name    string
		machine machine
		want    string
	}{
		{"variable", everywhere.environment("LD_LIBRARY_PATH", "/nowhere::/opt/rdma/lib"), "/opt/rdma/lib/" + soname},
		{"cache", everywhere, "/opt/cached/" + soname},
		{"directory", everywhere.with(map[string]string{"/etc/ld.so.cache": "gone"}), "/usr/lib64/" + soname},
		{"nowhere", bare(), ""},
	} {
		r := Examine(tt.machine.machine())
		if r.Library.Path != tt.want {
			t.Errorf("%s: the library is %q, want %q", tt.name, r.Library.Path, tt.want)
		}
	}
}

// encodeCache writes a loader cache as glibc does, from pairs of name and path.
func encodeCache(entries ...[2]string) []byte {
	strings := cacheHeader + cacheEntry*len(entries)
	var table, text []byte
	add := func(s string) uint32 {
		at := uint32(strings + len(text))
		text = append(append(text, s...), 0)
		return at
	}
	for _, e := range entries {
		table = binary.LittleEndian.AppendUint32(table, 0x0303) // ELF, x86-64
		table = binary.LittleEndian.AppendUint32(table, add(e[0]))
		table = binary.LittleEndian.AppendUint32(table, add(e[1]))
		table = append(table, make([]byte, 12)...)
	}
	header := append([]byte(cacheMagic), make([]byte, cacheHeader-len(cacheMagic))...)
	binary.LittleEndian.PutUint32(header[cacheCountAt:], uint32(len(entries)))
	binary.LittleEndian.PutUint32(header[cacheCountAt+4:], uint32(len(text)))
	return slices.Concat(header, table, text)
}

func TestCachedPaths(t *testing.T) {
	cache := encodeCache([2]string{"liba.so.1", "/lib/liba.so.1"}, [2]string{"libb.so.1", "/lib/libb.so.1"}, [2]string{"liba.so.1", "/usr/lib/liba.so.1"}, [2]string{"liba.so.1", "relative"})
	want := []string{"/lib/liba.so.1", "/usr/lib/liba.so.1"}
	for name, c := range map[string][]byte{"new": cache, "old before new": append([]byte("ld.so-1.7.0\x00 old entries "), cache...)} {
		if got := cachedPaths(c, "liba.so.1"); !slices.Equal(got, want) {
			t.Errorf("%s: cachedPaths = %q, want %q", name, got, want)
		}
	}
	many := bytes.Clone(cache)
	binary.LittleEndian.PutUint32(many[cacheCountAt:], 1<<31)
	for name, c := range map[string][]byte{"empty": nil, "header only": cache[:cacheHeader-1], "too many entries": many, "no strings": cache[:cacheHeader+4*cacheEntry]} {
		if got := cachedPaths(c, "liba.so.1"); len(got) != 0 {
			t.Errorf("%s: cachedPaths = %q, want none", name, got)
		}
	}
}

// TestRealCache checks that a cache written by glibc's ldconfig is understood.
func TestRealCache(t *testing.T) {
	cache, err := os.ReadFile("/etc/ld.so.cache")
	if err != nil {
		t.Skipf("this machine has no loader cache: %v", err)
	}
	if got := cachedPaths(cache, "libc.so.6"); len(got) == 0 {
		t.Error("cachedPaths finds no libc.so.6 in /etc/ld.so.cache, want one")
	}
}

func FuzzCachedPaths(f *testing.F) {
	f.Add(encodeCache([2]string{soname, "/usr/lib/" + soname}), soname)
	f.Add([]byte(cacheMagic), "")
	f.Fuzz(func(t *testing.T, cache []byte, soname string) {
		for _, p := range cachedPaths(cache, soname) {
			if p == "" || p[0] != '/' || len(p) >= cacheMaxString {
				t.Errorf("cachedPaths returns %q, want absolute paths", p)
			}
		}
	})
}
