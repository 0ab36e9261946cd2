package doctor

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Module is a kernel module that RDMA may need.
type Module struct {
	Name   string `json:"name"`
	Loaded bool   `json:"loaded"` // or built into the kernel
}

// readModules checks for the modules that every RDMA machine has, and for drivers.
func (e *exam) readModules() {
	for _, m := range []string{"ib_core", "ib_uverbs", "rdma_ucm", "mlx5_ib", "mlx4_ib", "irdma", "bnxt_re", "efa", "rdma_rxe", "siw"} {
		e.Modules = append(e.Modules, Module{Name: m, Loaded: e.exists("/sys/module/" + m)})
	}
}

// loaded reports whether a module of the list is in the kernel.
func (e *exam) loaded(module string) bool {
	return slices.Contains(e.Modules, Module{Name: module, Loaded: true})
}

// nic is an RDMA NIC on the PCI bus, with or without a kernel driver.
type nic struct {
	address string // 0000:3b:00.0
	vendor  string
	module  string // the module that makes it an RDMA device
}

// pciNICs finds NICs by vendor and device number. Mellanox device numbers below 0x1011 are
// ConnectX-3 and older. 0x1011 is Connect-IB, the first NIC of the mlx5 driver.
func (e *exam) pciNICs() []nic {
	var found []nic
	for _, address := range e.list("/sys/bus/pci/devices") {
		dir := "/sys/bus/pci/devices/" + address + "/"
		const network = 0x02 // base class of network controllers
		if e.number(dir+"class")>>16 != network {
			continue
		}
		device := e.number(dir + "device")
		n := nic{address: address}
		switch e.number(dir + "vendor") {
		case 0x15b3:
			n.vendor, n.module = "Mellanox", "mlx5_ib"
			if device < 0x1011 {
				n.module = "mlx4_ib"
			}
		case 0x1d0f:
			if device>>4 != 0xefa {
				continue
			}
			n.vendor, n.module = "Amazon EFA", "efa"
		case 0x8086: // E810
			if !slices.Contains([]int{0x1591, 0x1592, 0x1593, 0x1599, 0x159a, 0x159b}, device) {
				continue
			}
			n.vendor, n.module = "Intel E810", "irdma"
		default:
			continue
		}
		found = append(found, n)
	}
	return found
}

// judgeKernel reports whether the kernel has RDMA devices, and the missing parts otherwise.
func (e *exam) judgeKernel() {
	nics := e.pciNICs()
	for _, n := range nics {
		if !e.loaded(n.module) {
			e.driverMissing(n)
		}
	}
	if len(e.Devices) == 0 {
		e.noDevice(nics)
		return
	}
	e.ok("devices", "%s", count(len(e.Devices), "RDMA device")+": "+strings.Join(e.deviceNames(), ", "))
	if !e.loaded("ib_uverbs") && len(e.list("/sys/class/infiniband_verbs")) == 0 {
		e.report("kernel", Problem, "the kernel module ib_uverbs is not loaded",
			"There are RDMA devices, but programs cannot reach them: this module creates /dev/infiniband.",
			append([]string{e.onHost("modprobe ib_uverbs")}, e.install("rdma-core", "rdma-core")...)...)
	} else {
		e.ok("kernel", "ib_uverbs is in the kernel: programs can reach the devices")
	}
	if !e.loaded("rdma_ucm") {
		e.report("kernel", Note, "the kernel module rdma_ucm is not loaded",
			"Programs that connect through librdmacm (such as rping) do not work. ibverbx does not need it.",
			e.onHost("modprobe rdma_ucm"))
	}
}

func (e *exam) driverMissing(n nic) {
	do := []string{e.onHost("modprobe " + n.module)}
	if e.System.ubuntu {
		do = append(do, "If there is no such module: apt-get install linux-modules-extra-$(uname -r)")
	}
	if e.System.family == "rhel" {
		do = append(do, "If there is no such module: dnf install kernel-modules")
	}
	do = append(do, "If it does not load: dmesg | grep "+strings.TrimSuffix(n.module, "_ib"))
	e.report("kernel", Problem, fmt.Sprintf("there is a NIC that can do RDMA (%s, PCI %s), but its driver %s is not loaded", n.vendor, n.address, n.module),
		"Without this module the kernel creates no RDMA device for the NIC. The NIC works at most for Ethernet.", do...)
}

// noDevice reports that the kernel does not have a device, with the likely reason.
func (e *exam) noDevice(nics []nic) {
	found := "the kernel shows no RDMA device (/sys/class/infiniband is empty or missing)"
	i := slices.IndexFunc(nics, func(n nic) bool { return e.loaded(n.module) })
	switch {
	case i >= 0 && e.System.Container != "":
		e.report("devices", Problem, found, fmt.Sprintf("The host has a NIC (%s) and its driver, but this container does not see the device. "+
			"The host gives each RDMA device to one network namespace (rdma system show prints netns exclusive).", nics[i].vendor),
			"On the host: rdma system set netns shared, before any container is started.",
			"Or move the device to the container: rdma dev set mlx5_0 netns NAME, or the rdma CNI plugin in Kubernetes.")
	case i >= 0:
		e.report("devices", Problem, found, fmt.Sprintf("The driver %s is loaded but created no device for the NIC at PCI %s. Its firmware or its configuration forbids it.",
			nics[i].module, nics[i].address),
			"dmesg | grep -i "+strings.TrimSuffix(nics[i].module, "_ib"),
			"devlink dev param show pci/"+nics[i].address+" name enable_roce (or enable_rdma) shows whether RDMA is disabled.")
	case len(nics) > 0: // the missing driver is reported separately
		e.report("devices", Problem, found, "Programs have nothing to open. The cause is the missing driver.")
	default:
		e.report("devices", Problem, found, "No NIC in this machine is known to support RDMA, or a hypervisor hides it.",
			"If there is one: lspci -nn | grep -iE 'mellanox|infiniband|ethernet' shows whether the machine sees it.",
			"If there is none, Soft-RoCE works on any Ethernet netdev. "+e.onHost("modprobe rdma_rxe && rdma link add rxe0 type rxe netdev eth0"),
			"If neither is possible, use softnic, the software NIC in this program. ibverbx perf measures it.")
	}
}

func (e *exam) deviceNames() []string {
	var names []string
	for i := range e.Devices {
		names = append(names, e.Devices[i].Name)
	}
	return names
}

// count formats a number and a noun.
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.Itoa(n) + " " + noun + "s"
}
