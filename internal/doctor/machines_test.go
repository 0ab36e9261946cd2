package doctor

import (
	"fmt"
	"io/fs"
	"maps"
	"strings"
	"syscall"
	"testing/fstest"
)

// machine is an imaginary machine: files by absolute path, symbolic links as "-> target",
// environment variables, and errors of device files.
type machine struct {
	files map[string]string
	env   map[string]string
	open  map[string]error
}

// with returns a copy of a machine with files added or replaced. The contents "gone" remove a
// file and everything below it.
func (m machine) with(files map[string]string) machine {
	m.files = maps.Clone(m.files)
	for p, text := range files {
		if text != "gone" {
			m.files[p] = text
			continue
		}
		maps.DeleteFunc(m.files, func(file, _ string) bool { return file == p || strings.HasPrefix(file, p+"/") })
	}
	return m
}

// environment returns a copy of a machine with a variable set.
func (m machine) environment(name, value string) machine {
	m.env = map[string]string{name: value}
	return m
}

// refusing returns a copy of a machine where opening a device file fails.
func (m machine) refusing(file string, err error) machine {
	m.open = map[string]error{file: &fs.PathError{Op: "open", Path: file, Err: err}}
	return m
}

// machine converts m for Examine.
func (m machine) machine() Machine {
	root := fstest.MapFS{}
	for p, text := range m.files {
		f := &fstest.MapFile{Data: []byte(text), Mode: 0o644}
		if target, ok := strings.CutPrefix(text, "-> "); ok {
			f = &fstest.MapFile{Data: []byte(target), Mode: fs.ModeSymlink | 0o777}
		}
		root[name(p)] = f
	}
	return Machine{
		OS: "linux", Root: root,
		Env:  func(name string) string { return m.env[name] },
		Open: func(name string) error { return m.open[name] },
	}
}

// bare is a Debian machine without anything for RDMA, with systemd's usual limits.
func bare() machine {
	return machine{files: map[string]string{
		"/proc/sys/kernel/osrelease":               "6.1.0-1-amd64\n",
		"/proc/self/limits":                        limits("8388608", "8388608"),
		"/proc/self/status":                        "Name:\tibverbx\nCapEff:\t0000000000000000\n",
		"/proc/self/uid_map":                       "         0          0 4294967295\n",
		"/proc/self/cgroup":                        "0::/user.slice/user-1000.slice/session-1.scope\n",
		"/proc/1/cgroup":                           "0::/init.scope\n",
		"/etc/os-release":                          "PRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\nID=debian\n",
		"/sys/bus/pci/devices/0000:00:03.0/class":  "0x020000\n",
		"/sys/bus/pci/devices/0000:00:03.0/vendor": "0x1af4\n",
		"/sys/bus/pci/devices/0000:00:03.0/device": "0x1041\n",
	}}
}

func limits(soft, hard string) string {
	return "Limit                     Soft Limit           Hard Limit           Units     \n" +
		"Max open files            1024                 524288               files     \n" +
		fmt.Sprintf("Max locked memory         %-20s %-20s bytes     \n", soft, hard)
}

// libraries returns the libraries of rdma-core as installed by Debian, with two providers.
func libraries() map[string]string {
	const dir = "/usr/lib/x86_64-linux-gnu/"
	return map[string]string{
		dir + "libibverbs.so.1":                   "-> libibverbs.so.1.14.44.0",
		dir + "libibverbs.so.1.14.44.0":           "\x7fELF ... %s/lib%s-rdmav34.so\x00 ...",
		dir + "libibverbs/libmlx5-rdmav34.so":     "\x7fELF",
		dir + "libibverbs/librxe-rdmav34.so":      "\x7fELF",
		dir + "librdmacm.so.1":                    "\x7fELF",
		"/etc/libibverbs.d/mlx5.driver":           "driver mlx5\n",
		"/etc/libibverbs.d/rxe.driver":            "driver rxe\n",
		"/etc/libibverbs.d/README":                "not a driver\n",
		"/etc/ld.so.cache":                        string(encodeCache([2]string{soname, "/lib/x86_64-linux-gnu/" + soname}, [2]string{soname, dir + soname})),
		"/usr/lib/x86_64-linux-gnu/libc.so.6":     "\x7fELF",
		"/sys/class/infiniband_verbs/abi_version": "6\n",
		"/sys/module/ib_core/refcnt":              "1\n",
		"/sys/module/ib_uverbs/refcnt":            "1\n",
		"/sys/module/rdma_ucm/refcnt":             "0\n",
	}
}

// rdmaDevice returns the files of a device with a single port.
func rdmaDevice(n, uverbs string) map[string]string {
	dir := "/sys/class/infiniband/" + n + "/"
	return map[string]string{
		dir + "node_type":          "1: CA\n",
		dir + "node_guid":          "b859:9f03:00aa:bb01\n",
		dir + "fw_ver":             "22.36.1010\n",
		dir + "ports/1/state":      "4: ACTIVE\n",
		dir + "ports/1/phys_state": "5: LinkUp\n",
		dir + "ports/1/lid":        "0x0\n",
		dir + "ports/1/rate":       "100 Gb/sec (4X EDR)\n",
		"/sys/class/infiniband_verbs/" + uverbs + "/ibdev": n + "\n",
		"/dev/infiniband/" + uverbs:                        "",
	}
}

// roce gives a device's port a netdev and the usual rows of a GID table: each address as RoCE
// v1 and v2.
func roce(n, netdev, mtu, ipv4 string) map[string]string {
	port := "/sys/class/infiniband/" + n + "/ports/1/"
	files := map[string]string{
		port + "link_layer":                      "Ethernet\n",
		port + "gids/4":                          "0000:0000:0000:0000:0000:0000:0000:0000\n",
		"/sys/class/net/" + netdev + "/mtu":      mtu + "\n",
		"/sys/class/net/" + netdev + "/flags":    "0x1003\n",
		"/sys/class/net/" + netdev + "/dev_port": "0\n",
	}
	for i, row := range [][2]string{
		{"fe80:0000:0000:0000:ba59:9fff:feaa:bb01", "IB/RoCE v1"},
		{"fe80:0000:0000:0000:ba59:9fff:feaa:bb01", "RoCE v2"},
		{"0000:0000:0000:0000:0000:ffff:" + ipv4, "IB/RoCE v1"},
		{"0000:0000:0000:0000:0000:ffff:" + ipv4, "RoCE v2"},
	} {
		files[fmt.Sprintf("%sgids/%d", port, i)] = row[0] + "\n"
		files[fmt.Sprintf("%sgid_attrs/types/%d", port, i)] = row[1] + "\n"
		files[fmt.Sprintf("%sgid_attrs/ndevs/%d", port, i)] = netdev + "\n"
	}
	return files
}

// mlx5 is a machine with a healthy ConnectX NIC for Ethernet.
func mlx5() machine {
	return bare().with(libraries()).with(rdmaDevice("mlx5_0", "uverbs0")).with(roce("mlx5_0", "ens1f0", "9000", "c000:0201")).with(map[string]string{
		"/sys/class/infiniband/mlx5_0/device/driver": "-> ../../../../bus/pci/drivers/mlx5_core",
		"/sys/bus/pci/devices/0000:3b:00.0/class":    "0x020000\n",
		"/sys/bus/pci/devices/0000:3b:00.0/vendor":   "0x15b3\n",
		"/sys/bus/pci/devices/0000:3b:00.0/device":   "0x101d\n",
		"/sys/module/mlx5_ib/refcnt":                 "0\n",
		"/proc/self/limits":                          limits("unlimited", "unlimited"),
	})
}

// noRows removes rows of the GID table of mlx5_0.
func (m machine) noRows(rows ...int) machine {
	const port = "/sys/class/infiniband/mlx5_0/ports/1/"
	for _, row := range rows {
		m = m.with(map[string]string{
			fmt.Sprintf("%sgids/%d", port, row):            "0000:0000:0000:0000:0000:0000:0000:0000\n",
			fmt.Sprintf("%sgid_attrs/types/%d", port, row): "gone",
			fmt.Sprintf("%sgid_attrs/ndevs/%d", port, row): "gone",
		})
	}
	return m
}

// infiniBand makes the port of mlx5_0 an InfiniBand port.
func infiniBand(state, physical string) map[string]string {
	const port = "/sys/class/infiniband/mlx5_0/ports/1/"
	return map[string]string{
		port + "link_layer": "InfiniBand\n", port + "state": state + "\n", port + "phys_state": physical + "\n",
		port + "gid_attrs/ndevs": "gone",
	}
}

var errPerm, errAccess, errGone error = syscall.EPERM, syscall.EACCES, syscall.ENODEV
