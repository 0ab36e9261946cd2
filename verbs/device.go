package verbs

import "fmt"

// Device is a NIC that can be opened. It is safe for concurrent use.
type Device interface {
	// Name is the device's name, such as "mlx5_0" or "soft0".
	Name() string
	// GUID is the node GUID.
	GUID() GUID
	// Open returns a new Context on the device. A device may be opened several times. Objects of one
	// Context are not valid in another.
	Open() (Context, error)
}

// DeviceAttr describes a device and its limits (ibv_query_device(3)). A limit of an object count is the
// maximum per device.
type DeviceAttr struct {
	// Provider is the name of the driving package: "softnic" or "rdmacore".
	Provider string
	// Link is the medium: "memory", "fault", "udp", "shm", "Ethernet" or "InfiniBand".
	Link         string
	FWVersion    string // firmware version, empty if unknown
	NodeGUID     GUID
	SysImageGUID GUID
	VendorID     uint32
	VendorPartID uint32
	HWVersion    uint32
	Ports        int // number of ports

	MaxMRSize  uint64 // bytes in one memory region
	MaxMR      int
	MaxPD      int
	MaxQP      int
	MaxQPWR    int // work requests in one send or receive queue
	MaxSGE     int // scatter-gather elements in one work request; more than the package's MaxSGE only as a list (SendWR.Listed)
	MaxInline  int // inline bytes in one send; 0 if unknown until a QP exists
	MaxCQ      int
	MaxCQE     int // completions in one CQ
	MaxSRQ     int
	MaxSRQWR   int // receives in one SRQ
	MaxSRQSGE  int // scatter-gather elements in one SRQ receive
	MaxAH      int
	MaxMsgSize uint64 // bytes in one RC or UC message

	// MaxQPRdAtomic is the maximum number of outstanding READs and atomics that a QP serves as
	// responder.
	MaxQPRdAtomic int
	// MaxQPInitRdAtomic is the maximum number of outstanding READs and atomics that a QP issues.
	MaxQPInitRdAtomic int

	Atomic       AtomicCap    // scope of atomics
	Capabilities Capabilities // optional features
}

// AtomicCap is the scope within which a device's atomics are atomic.
type AtomicCap uint8

// Atomic capabilities, numbered as in enum ibv_atomic_cap.
const (
	AtomicNone AtomicCap = iota // no atomics
	AtomicHCA                   // atomic among the QPs of this device
	AtomicGlob                  // also atomic with the CPU and other devices
)

// String returns the name that ibv_devinfo prints.
func (a AtomicCap) String() string {
	return nameOf(a, "AtomicCap", []string{AtomicNone: "ATOMIC_NONE", AtomicHCA: "ATOMIC_HCA", AtomicGlob: "ATOMIC_GLOB"})
}

// Capabilities is a set of optional device features.
type Capabilities uint32

// Capabilities of a device.
const (
	CapUC          Capabilities = 1 << iota // unreliable connected QPs
	CapUD                                   // unreliable datagram QPs
	CapSRQ                                  // shared receive queues
	CapSRQOnUC                              // UC QPs may use an SRQ
	CapSQD                                  // the send queue can be drained (SQD)
	CapDMABuf                               // dma-buf memory can be registered
	CapTimestamp                            // completions carry a timestamp
	CapFlushOnPost                          // a receive posted in ERR is flushed at once
	CapSeal                                 // packets can be sealed (PathConfig.Seal)
	CapRC                                   // reliable connected QPs
	CapSRQOnUD                              // UD QPs may use an SRQ
)

// PortState is the logical state of a port.
type PortState uint8

// Port states, numbered as in enum ibv_port_state.
const (
	PortNop         PortState = 0
	PortDown        PortState = 1
	PortInit        PortState = 2
	PortArmed       PortState = 3
	PortActive      PortState = 4
	PortActiveDefer PortState = 5
)

// String returns the name that ibv_devinfo prints.
func (s PortState) String() string {
	return nameOf(s, "PortState", []string{
		PortNop: "PORT_NOP", PortDown: "PORT_DOWN", PortInit: "PORT_INIT", PortArmed: "PORT_ARMED",
		PortActive: "PORT_ACTIVE", PortActiveDefer: "PORT_ACTIVE_DEFER",
	})
}

// LinkLayer is the protocol below a port.
type LinkLayer uint8

// Link layers, numbered as in libibverbs.
const (
	LinkLayerUnspecified LinkLayer = 0
	LinkLayerInfiniBand  LinkLayer = 1
	LinkLayerEthernet    LinkLayer = 2
)

// String returns the name that ibv_devinfo prints.
func (l LinkLayer) String() string {
	return nameOf(l, "LinkLayer", []string{
		LinkLayerUnspecified: "Unspecified", LinkLayerInfiniBand: "InfiniBand", LinkLayerEthernet: "Ethernet",
	})
}

// MTU is a path MTU: the payload bytes of one packet, as a code.
type MTU uint8

// MTU codes, numbered as in enum ibv_mtu.
const (
	MTU256  MTU = 1
	MTU512  MTU = 2
	MTU1024 MTU = 3
	MTU2048 MTU = 4
	MTU4096 MTU = 5
)

// Bytes returns the payload bytes of one packet, or 0 for an unknown code.
func (m MTU) Bytes() int {
	if m < MTU256 || m > MTU4096 {
		return 0
	}
	return 128 << m
}

// String returns the number of bytes and the code, as ibv_devinfo prints it.
func (m MTU) String() string { return fmt.Sprintf("%d (%d)", m.Bytes(), uint8(m)) }

// MTUOf returns the code for an MTU in bytes: 256, 512, 1024, 2048 or 4096. Other sizes return
// ErrInvalid.
func MTUOf(bytes int) (MTU, error) {
	for m := MTU256; m <= MTU4096; m++ {
		if m.Bytes() == bytes {
			return m, nil
		}
	}
	return 0, Invalidf("MTU of %d bytes: want 256, 512, 1024, 2048 or 4096", bytes)
}

// PortAttr describes a port and its state (ibv_query_port(3)).
type PortAttr struct {
	State     PortState
	MaxMTU    MTU    // largest supported MTU
	ActiveMTU MTU    // current MTU
	GIDs      int    // rows of the GID table
	PKeys     int    // rows of the P_Key table
	MaxMsg    uint64 // bytes in one message
	LID       uint16 // InfiniBand only
	SMLID     uint16 // LID of the subnet manager, InfiniBand only
	LMC       uint8  // LID mask count, InfiniBand only
	LinkLayer LinkLayer
	// SpeedMbps is the port's rate in megabits per second; 0 means unknown.
	SpeedMbps uint32
	// OnCaller is set when posting moves the data on the caller's core. Several such ports are not
	// faster than one.
	OnCaller bool
	// DeviceCopies is set when a device copies its own memory for the port (MemoryDevice), and each
	// request on such memory waits for the device. A single unfragmented request is then fastest.
	DeviceCopies bool
}
