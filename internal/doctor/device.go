package doctor

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Device is an RDMA device as sysfs shows it.
type Device struct {
	Name     string `json:"name"`
	NodeType string `json:"node_type,omitempty"`
	NodeGUID string `json:"node_guid,omitempty"`
	Firmware string `json:"fw_ver,omitempty"`

	// Driver is the provider that drives the device (mlx5, rxe, ...), "" if unknown.
	Driver string `json:"driver,omitempty"`

	// File is the device file, "" if missing.
	File string `json:"file,omitempty"`
	// FileError is the reason why the file cannot be opened, "" if it can.
	FileError string `json:"file_error,omitempty"`

	// Usable reports whether this process can use at least one port. It does not cover libraries
	// and limits.
	Usable bool   `json:"usable"`
	Ports  []Port `json:"ports"`

	opens  bool // its file can be opened
	live   bool // one of its ports works
	served bool // it has a provider
}

// Port is a device's port.
type Port struct {
	Number    int    `json:"port"`
	State     string `json:"state"`      // ACTIVE, DOWN, INIT, ARMED
	Physical  string `json:"phys_state"` // LinkUp, Disabled, Polling, ...
	LinkLayer string `json:"link_layer"` // Ethernet or InfiniBand
	Rate      string `json:"rate,omitempty"`
	LID       int    `json:"lid"`

	// NetDev is the network interface of an Ethernet port, "" if unknown.
	NetDev string `json:"netdev,omitempty"`
	// MTUNetDev is the MTU of NetDev in bytes; 0 if unknown.
	MTUNetDev int `json:"netdev_mtu,omitempty"`
	// MTU is the RDMA MTU in bytes that fits into MTUNetDev; 0 if unknown.
	MTU int `json:"mtu,omitempty"`

	GIDs []GID `json:"gids"`
}

// GID is a used row of a port's GID table.
type GID struct {
	Index  int    `json:"index"`
	GID    string `json:"gid"`
	Type   string `json:"type"` // IB/RoCE v1 or RoCE v2
	NetDev string `json:"netdev,omitempty"`

	address netip.Addr
}

// readDevices reads all devices with their ports and GIDs.
func (e *exam) readDevices() {
	files := e.deviceFiles()
	for _, n := range e.list("/sys/class/infiniband") {
		dir := "/sys/class/infiniband/" + n + "/"
		if !e.exists(dir + "ports") {
			continue // bonding_masters and the like
		}
		d := Device{
			Name: n, NodeType: after(e.text(dir + "node_type")), NodeGUID: e.text(dir + "node_guid"),
			Firmware: e.text(dir + "fw_ver"), Driver: e.driver(n), File: files[n], Ports: []Port{},
		}
		for _, p := range e.list(dir + "ports") {
			if number, err := strconv.Atoi(p); err == nil {
				d.Ports = append(d.Ports, e.readPort(&d, dir, number))
			}
		}
		slices.SortFunc(d.Ports, func(a, b Port) int { return a.Number - b.Number })
		e.Devices = append(e.Devices, d)
	}
}

// deviceFiles returns the device files by device name.
func (e *exam) deviceFiles() map[string]string {
	files := map[string]string{}
	for _, u := range e.list("/sys/class/infiniband_verbs") {
		if device := e.text("/sys/class/infiniband_verbs/" + u + "/ibdev"); device != "" {
			files[device] = "/dev/infiniband/" + u
		}
	}
	return files
}

func (e *exam) readPort(d *Device, dir string, number int) Port {
	port := dir + "ports/" + strconv.Itoa(number) + "/"
	p := Port{
		Number: number, State: after(e.text(port + "state")), Physical: after(e.text(port + "phys_state")),
		LinkLayer: e.text(port + "link_layer"), Rate: e.text(port + "rate"), LID: e.number(port + "lid"), GIDs: e.readGIDs(port),
	}
	if p.NetDev = e.netDev(dir, &p); p.NetDev != "" {
		p.MTUNetDev = e.number("/sys/class/net/" + p.NetDev + "/mtu")
		p.MTU = rdmaMTU(p.MTUNetDev, d.Driver)
	}
	return p
}

// maxHole is the number of consecutive empty rows that stops reading a GID table. The kernel fills
// the first free row, and rxe's table has 1024 rows.
const maxHole = 128

// readGIDs reads the used rows of a GID table.
func (e *exam) readGIDs(port string) []GID {
	found := []GID{}
	for i, hole := 0, 0; hole < maxHole; i++ {
		row := strconv.Itoa(i)
		text := e.text(port + "gids/" + row)
		if text == "" {
			break // end of the table
		}
		address, err := netip.ParseAddr(text)
		if err != nil || emptyGID(address) {
			hole++
			continue
		}
		hole = 0
		found = append(found, GID{
			Index: i, GID: address.String(), Type: e.text(port + "gid_attrs/types/" + row),
			NetDev: e.text(port + "gid_attrs/ndevs/" + row), address: address,
		})
	}
	return found
}

// emptyGID reports whether a row is unused. It has neither prefix nor interface, or only a
// link-local prefix, as on inactive ports.
func emptyGID(a netip.Addr) bool {
	b := a.As16()
	return a.IsUnspecified() || a.IsLinkLocalUnicast() && [8]byte(b[8:]) == [8]byte{}
}

// netDev returns the network interface of an Ethernet port. It is found through the GIDs, rxe's
// parent file, or the same PCI function and port.
func (e *exam) netDev(device string, p *Port) string {
	if p.LinkLayer != "Ethernet" {
		return ""
	}
	for _, g := range p.GIDs {
		if g.NetDev != "" {
			return g.NetDev
		}
	}
	if parent := e.text(device + "parent"); parent != "" {
		return parent
	}
	for _, n := range e.list(device + "device/net") {
		if e.number(device+"device/net/"+n+"/dev_port") == p.Number-1 {
			return n
		}
	}
	return ""
}

// rdmaMTU returns the RDMA MTU that fits into the MTU of a network interface. Hardware drivers
// reserve space for the largest RoCE headers: GRH or IP (40), UDP (8), BTH (12), XRC extension (4),
// AtomicETH (28) and ICRC (4). rxe reserves 80 bytes.
func rdmaMTU(netdev int, driver string) int {
	headers := 40 + 8 + 12 + 4 + 28 + 4
	if driver == "rxe" {
		headers = 80
	}
	for _, mtu := range []int{4096, 2048, 1024, 512, 256} {
		if netdev-headers >= mtu {
			return mtu
		}
	}
	return 0
}

// kernelDrivers maps drivers of the PCI function to providers with another name.
var kernelDrivers = map[string]string{
	"mlx5_core": "mlx5",
	"mlx4_core": "mlx4",
	"bnxt_en":   "bnxt_re",
	"ice":       "irdma",
	"i40e":      "irdma",
	"hns3":      "hns",
	"qede":      "qedr",
	"be2net":    "ocrdma",
	"ib_mthca":  "mthca",
	"hfi1":      "hfi1verbs",
}

// driver returns the name of the provider for a device. It depends on the hardware driver, or for
// software devices on sysfs.
func (e *exam) driver(device string) string {
	dir := "/sys/class/infiniband/" + device + "/"
	if d := e.link(dir + "device/driver"); d != "" {
		if provider, ok := kernelDrivers[d]; ok {
			return provider
		}
		return d
	}
	for _, soft := range []string{"rxe", "siw"} {
		if strings.HasPrefix(device, soft) || e.text(dir+"node_desc") == soft {
			return soft
		}
	}
	return ""
}

// after returns the text after the number in a file such as "4: ACTIVE".
func after(s string) string {
	if _, word, ok := strings.Cut(s, ": "); ok {
		return word
	}
	return s
}
