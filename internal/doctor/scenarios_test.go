package doctor

import "testing"

// TestKernel examines machines whose kernel has a device, lacks one, or hides it.
func TestKernel(t *testing.T) {
	docker := map[string]string{"/.dockerenv": ""}
	play(t, []scenario{
		{
			"no RDMA at all", bare(), false,
			noDeviceFound + "problem library: libibverbs.so.1 is not installed\n" +
				"warning memlock: locked memory is limited to 8 MiB\n",
			[]string{"lspci", "rdma link add rxe0 type rxe netdev eth0", "softnic", "apt-get install libibverbs1 ibverbs-providers", "limits.d"},
		},
		{
			"RHEL without RDMA", bare().with(map[string]string{"/etc/os-release": "ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n"}), false,
			noDeviceFound + "problem library: libibverbs.so.1 is not installed\n" + "warning memlock: locked memory is limited to 8 MiB\n",
			[]string{"dnf install libibverbs"},
		},
		{"mlx5", mlx5(), true, "", nil},
		{
			"no librdmacm", mlx5().with(map[string]string{"/usr/lib/x86_64-linux-gnu/librdmacm.so.1": "gone"}), true,
			"note library: librdmacm.so.1 is not installed\n",
			[]string{"apt-get install librdmacm1"},
		},
		{"mlx5, InfiniBand", mlx5().with(infiniBand("4: ACTIVE", "5: LinkUp")), true, "", nil},
		{
			"driver not loaded", bare().with(libraries()).with(map[string]string{
				"/etc/os-release":                          "ID=ubuntu\nID_LIKE=debian\n",
				"/sys/bus/pci/devices/0000:3b:00.0/class":  "0x020000",
				"/sys/bus/pci/devices/0000:3b:00.0/vendor": "0x15b3",
				"/sys/bus/pci/devices/0000:3b:00.0/device": "0x1017",
				"/proc/self/limits":                        limits("unlimited", "unlimited"),
			}), false,
			"problem kernel: there is a NIC that can do RDMA (Mellanox, PCI 0000:3b:00.0), but its driver mlx5_ib is not loaded\n" + noDeviceFound,
			[]string{"modprobe mlx5_ib", "linux-modules-extra-$(uname -r)", "dmesg | grep mlx5"},
		},
		{
			"driver not loaded on the host of a container", mlx5().with(docker).with(map[string]string{
				"/sys/class/infiniband": "gone", "/sys/module/mlx5_ib": "gone",
			}), false,
			"problem kernel: there is a NIC that can do RDMA (Mellanox, PCI 0000:3b:00.0), but its driver mlx5_ib is not loaded\n" + noDeviceFound,
			[]string{"On the host, not in this container: modprobe mlx5_ib"},
		},
		{
			"driver made no device", mlx5().with(map[string]string{"/sys/class/infiniband": "gone"}), false,
			noDeviceFound,
			[]string{"devlink dev param show pci/0000:3b:00.0 name enable_roce"},
		},
		{
			"device in the host's namespace", mlx5().with(map[string]string{"/sys/class/infiniband": "gone"}).with(docker), false,
			noDeviceFound,
			[]string{"rdma system set netns shared"},
		},
		{
			"no ib_uverbs", mlx5().with(map[string]string{
				"/sys/class/infiniband_verbs": "gone", "/sys/module/ib_uverbs": "gone", "/sys/module/rdma_ucm": "gone", "/dev/infiniband": "gone",
			}), false,
			"problem kernel: the kernel module ib_uverbs is not loaded\nnote kernel: the kernel module rdma_ucm is not loaded\n",
			[]string{"modprobe ib_uverbs", "modprobe rdma_ucm"},
		},
		{
			"iWARP", mlx5().with(map[string]string{"/sys/class/infiniband/mlx5_0/node_type": "4: RNIC\n"}), false,
			"problem devices: mlx5_0 is an iWARP device\n",
			[]string{"RoCE or InfiniBand device"},
		},
	})
}

// TestAccess examines machines with a device that this process cannot open.
func TestAccess(t *testing.T) {
	docker := map[string]string{"/.dockerenv": ""}
	play(t, []scenario{
		{
			"container without /dev/infiniband", mlx5().with(docker).with(map[string]string{"/dev/infiniband": "gone"}), false,
			"problem access: missing: /dev/infiniband/uverbs0\n",
			[]string{"--device=/dev/infiniband --ulimit memlock=-1"},
		},
		{
			"pod without /dev/infiniband", mlx5().environment("KUBERNETES_SERVICE_HOST", "10.0.0.1").with(map[string]string{
				"/dev/infiniband": "gone", "/proc/self/limits": limits("65536", "65536"),
			}), false,
			"problem access: missing: /dev/infiniband/uverbs0\nproblem memlock: locked memory is limited to 64 KiB\n",
			[]string{"device plugin", "LimitMEMLOCK=infinity in the unit of containerd"},
		},
		{
			"no udev", mlx5().with(map[string]string{"/dev/infiniband": "gone"}), false,
			"problem access: missing: /dev/infiniband/uverbs0\n",
			[]string{"udevadm trigger"},
		},
		{
			"not permitted", mlx5().refusing("/dev/infiniband/uverbs0", errAccess), false,
			"problem access: /dev/infiniband/uverbs0: open /dev/infiniband/uverbs0: permission denied\n",
			[]string{"chmod 0666 /dev/infiniband/uverbs0", `MODE="0666"`},
		},
		{
			"not permitted by the cgroup", mlx5().with(docker).refusing("/dev/infiniband/uverbs0", errPerm), false,
			"problem access: /dev/infiniband/uverbs0: open /dev/infiniband/uverbs0: operation not permitted\n",
			[]string{"--device=/dev/infiniband instead of mounting"},
		},
		{
			"device is gone", mlx5().refusing("/dev/infiniband/uverbs0", errGone), false,
			"problem access: /dev/infiniband/uverbs0: open /dev/infiniband/uverbs0: no such device\n",
			[]string{"dmesg"},
		},
		{
			"rdma cgroup", mlx5().with(map[string]string{
				"/proc/1/cgroup": "0::/docker/abc\n", "/proc/self/cgroup": "0::/docker/abc\n",
				"/sys/fs/cgroup/docker/abc/rdma.max": "mlx5_0 hca_handle=0 hca_object=max\nmlx5_1 hca_handle=max hca_object=max\n",
			}), true,
			"warning container: the rdma cgroup limits mlx5_0 to hca_handle=0 hca_object=max\n",
			[]string{"hca_handle=max"},
		},
		{
			"one of two devices", mlx5().with(rdmaDevice("mlx5_1", "uverbs1")).with(roce("mlx5_1", "ens1f1", "9000", "c000:0202")).with(map[string]string{
				"/sys/class/infiniband/mlx5_1/device/driver": "-> ../../../../bus/pci/drivers/mlx5_core",
			}).refusing("/dev/infiniband/uverbs1", errAccess), true,
			"warning access: /dev/infiniband/uverbs1: open /dev/infiniband/uverbs1: permission denied\n", nil,
		},
	})
}

// TestPorts examines machines whose port is not working, or not working well.
func TestPorts(t *testing.T) {
	const port = "/sys/class/infiniband/mlx5_0/ports/1/"
	play(t, []scenario{
		{
			"netdev switched off", mlx5().with(map[string]string{
				port + "state": "1: DOWN\n", port + "phys_state": "3: Disabled\n", "/sys/class/net/ens1f0/flags": "0x1002\n",
			}), false,
			"problem ports: mlx5_0 port 1 is DOWN (physical state Disabled): its netdev ens1f0 is switched off\n",
			[]string{"ip link set ens1f0 up"},
		},
		{
			"no cable", mlx5().with(map[string]string{port + "state": "1: DOWN\n", port + "phys_state": "3: Disabled\n"}), false,
			"problem ports: mlx5_0 port 1 is DOWN (physical state Disabled): its netdev ens1f0 is switched on but has no link\n",
			[]string{"ethtool ens1f0"},
		},
		{
			"no netdev", mlx5().noRows(0, 1, 2, 3).with(map[string]string{port + "state": "1: DOWN\n", port + "phys_state": "3: Disabled\n"}), false,
			"problem ports: mlx5_0 port 1 is DOWN (physical state Disabled)\n",
			[]string{"rdma link"},
		},
		{
			"no subnet manager", mlx5().with(infiniBand("2: INIT", "5: LinkUp")), false,
			"problem ports: mlx5_0 port 1 is INIT (physical state LinkUp)\n",
			[]string{"opensm"},
		},
		{
			"InfiniBand without a cable", mlx5().with(infiniBand("1: DOWN", "2: Polling")), false,
			"problem ports: mlx5_0 port 1 is DOWN (physical state Polling)\n",
			[]string{"cable"},
		},
		{
			"no GID", mlx5().noRows(0, 1, 2, 3), false,
			"problem gids: mlx5_0 port 1 has no GID\n",
			[]string{"ip addr add"},
		},
		{
			"link-local GIDs", mlx5().noRows(2, 3), true,
			"warning gids: mlx5_0 port 1 has link-local GIDs only\n",
			[]string{"give the netdev ens1f0 an address"},
		},
		{
			"RoCE v1", mlx5().noRows(1, 3), true,
			"warning gids: mlx5_0 port 1 has GIDs of RoCE v1 only\n",
			[]string{"RoCE v2"},
		},
		{
			"small MTU", mlx5().with(map[string]string{"/sys/class/net/ens1f0/mtu": "1500\n"}), true,
			"note mtu: mlx5_0 port 1: the MTU of ens1f0 is 1500, so the RDMA MTU is 1024 of 4096\n",
			[]string{"ip link set ens1f0 mtu 9000"},
		},
	})
}

// TestLibraries examines machines without the right libraries.
func TestLibraries(t *testing.T) {
	play(t, []scenario{
		{
			"no library", mlx5().with(map[string]string{
				"/usr/lib/x86_64-linux-gnu/libibverbs.so.1": "gone", "/etc/ld.so.cache": "gone",
			}), false,
			"problem library: libibverbs.so.1 is not installed\n",
			[]string{"apt-get install libibverbs1"},
		},
		{
			"empty library", mlx5().with(map[string]string{"/usr/lib/x86_64-linux-gnu/libibverbs.so.1.14.44.0": ""}), false,
			"problem library: /usr/lib/x86_64-linux-gnu/libibverbs.so.1 is not a shared library\n",
			[]string{"--reinstall"},
		},
		{
			"no provider announced", mlx5().with(map[string]string{"/etc/libibverbs.d/mlx5.driver": "gone"}), false,
			"problem providers: no provider for mlx5_0: /etc/libibverbs.d/mlx5.driver is missing\n",
			[]string{"apt-get install ibverbs-providers"},
		},
		{
			"provider of another version", mlx5().with(map[string]string{
				"/usr/lib/x86_64-linux-gnu/libibverbs/libmlx5-rdmav34.so": "gone", "/usr/lib/x86_64-linux-gnu/libibverbs/libmlx5-rdmav25.so": "\x7fELF",
			}), false,
			"problem providers: no provider for mlx5_0: there is no libmlx5-rdmav34.so\n",
			[]string{"find / -name 'libmlx5-rdmav*.so'"},
		},
		{
			"strange library", mlx5().with(map[string]string{"/usr/lib/x86_64-linux-gnu/libibverbs.so.1.14.44.0": "\x7fELF"}), true,
			"warning library: /usr/lib/x86_64-linux-gnu/libibverbs.so.1 does not name the providers that it loads\n",
			[]string{"--reinstall"},
		},
	})
}

// TestMemlock examines machines that limit locked memory.
func TestMemlock(t *testing.T) {
	docker := map[string]string{"/.dockerenv": ""}
	play(t, []scenario{
		{
			"no memlock", mlx5().with(map[string]string{"/proc/self/limits": limits("65536", "65536")}), false,
			"problem memlock: locked memory is limited to 64 KiB\n",
			[]string{"limits.d/rdma.conf", "LimitMEMLOCK=infinity in its systemd unit"},
		},
		{"memlock that is enough", mlx5().with(map[string]string{"/proc/self/limits": limits("2147483648", "2147483648")}), true, "", nil},
		{
			"problems come first", mlx5().with(map[string]string{"/sys/class/net/ens1f0/mtu": "1500\n", "/proc/self/limits": limits("65536", "65536")}), false,
			"problem memlock: locked memory is limited to 64 KiB\n" +
				"note mtu: mlx5_0 port 1: the MTU of ens1f0 is 1500, so the RDMA MTU is 1024 of 4096\n", nil,
		},
		{
			"memlock in a container", mlx5().with(docker).with(map[string]string{"/proc/self/limits": limits("8388608", "8388608")}), true,
			"warning memlock: locked memory is limited to 8 MiB\n",
			[]string{"--ulimit memlock=-1"},
		},
		{
			"memlock that the user can raise", mlx5().with(map[string]string{"/proc/self/limits": limits("65536", "unlimited")}), false,
			"problem memlock: locked memory is limited to 64 KiB\n",
			[]string{"ulimit -l unlimited"},
		},
		{
			"memlock and CAP_IPC_LOCK", mlx5().with(map[string]string{
				"/proc/self/limits": limits("65536", "65536"), "/proc/self/status": "CapEff:\t0000000000004000\n",
			}), true, "", nil,
		},
		{
			"memlock and CAP_IPC_LOCK of a user namespace", mlx5().with(map[string]string{
				"/proc/self/limits": limits("65536", "65536"), "/proc/self/status": "CapEff:\t000001ffffffffff\n", "/proc/self/uid_map": "0 1000 1\n",
			}), false,
			"problem memlock: locked memory is limited to 64 KiB\n", nil,
		},
		{
			"limits that cannot be read", mlx5().with(map[string]string{"/proc/self/limits": "gone"}), true,
			"note memlock: the limit on locked memory is not known: /proc/self/limits cannot be read\n",
			[]string{"ulimit -l"},
		},
	})
}
