package verbs

// Context is an open device, the factory for all other objects. After Close its methods return
// ErrClosed. It is safe for concurrent use.
type Context interface {
	// Device returns the open device.
	Device() Device
	// QueryDevice returns the device's identity and limits.
	QueryDevice() (DeviceAttr, error)
	// QueryPort returns the state of a port. Ports are numbered from 1. An unknown port is an error.
	QueryPort(port int) (PortAttr, error)
	// QueryGID returns row index of a port's GID table, or ErrNotFound if the row is empty.
	QueryGID(port, index int) (GIDEntry, error)

	// AllocPD allocates a protection domain. It returns ErrLimit if all of the device are in use.
	AllocPD() (PD, error)
	// CreateCQ creates a completion queue. It returns ErrInvalid for an invalid cfg, and ErrNotSupported
	// if the device lacks a requested feature.
	CreateCQ(cfg CQConfig) (CQ, error)

	// Events removes up to len(dst) asynchronous events, oldest first, and never blocks. After a device
	// failure it delivers the remaining events, then returns ErrDeviceFatal.
	Events(dst []Event) (n int, err error)
	// NotifyEvents wakes w whenever an event is queued; nil disables it. If events are already
	// queued, it wakes w immediately.
	NotifyEvents(w *Waker) error

	// Close destroys every object still open in the Context, in dependency order,
	// and then the Context, as the kernel does when a process exits.
	Close() error
}

// PD is a protection domain. A QP can use only memory, SRQs and address handles of its own PD. It
// is safe for concurrent use.
type PD interface {
	// RegisterMemory registers m with the NIC. m cannot be freed until the MR is closed.
	// AccessRemoteWrite and AccessRemoteAtomic require AccessLocalWrite (ibv_reg_mr(3)), otherwise it
	// returns ErrInvalid. A NIC that cannot access m's device, such as a GPU, returns ErrNotSupported.
	// INLINE requests cannot use device memory.
	RegisterMemory(m *Memory, access Access) (MR, error)
	// RegisterDMABuf registers length bytes of a dma-buf, starting at offset. Work requests address them
	// from iova, which must have the same offset within a page as offset. fd may be closed afterwards.
	// INLINE requests cannot use the region, because the CPU reads their bytes. Without CapDMABuf it
	// returns ErrNotSupported.
	RegisterDMABuf(fd int, offset, length, iova uint64, access Access) (MR, error)
	// CreateQP creates a QP in RESET. It returns ErrInvalid for an invalid cfg, ErrNotSupported if
	// the device lacks a requested feature, and ErrLimit if all QPs of the device are in use.
	CreateQP(cfg QPConfig) (QP, error)
	// CreateSRQ creates a shared receive queue. It requires CapSRQ, and returns ErrInvalid for an
	// invalid cfg.
	CreateSRQ(cfg SRQConfig) (SRQ, error)
	// CreateAH creates an address handle for UD sends.
	CreateAH(attr AHAttr) (AH, error)
	// Close frees the PD. It returns ErrBusy while objects of the PD exist.
	Close() error
}

// MR is a registered memory region. It is safe for concurrent use.
type MR interface {
	// Addr is the address of the first byte, as used in work requests.
	Addr() uint64
	// Len is the number of bytes.
	Len() uint64
	// LKey is the local key, used in the SGEs of local work requests.
	LKey() uint32
	// RKey is the remote key, used in the peer's work requests.
	RKey() uint32
	// Close deregisters the region. Work requests and remote accesses that still use its keys fail with
	// a protection or access error. After Close returns, the NIC no longer accesses the memory through
	// this region.
	Close() error
}

// Access is a set of permissions on a memory region or a QP.
type Access uint32

// Access flags, numbered as in enum ibv_access_flags. Local reads are always allowed.
const (
	AccessLocalWrite   Access = 1 << 0 // receives, READs and atomics may write the region
	AccessRemoteWrite  Access = 1 << 1 // the peer may WRITE
	AccessRemoteRead   Access = 1 << 2 // the peer may READ
	AccessRemoteAtomic Access = 1 << 3 // the peer may execute atomics
	// AccessRelaxedOrdering is a hint that providers may ignore.
	AccessRelaxedOrdering Access = 1 << 20

	// AccessAll allows every local and remote operation.
	AccessAll = AccessLocalWrite | AccessRemoteWrite | AccessRemoteRead | AccessRemoteAtomic
)

// AH is an address handle: the destination of a UD send.
type AH interface {
	// Handle is the value for SendWR.AH.
	Handle() AHHandle
	// Close destroys the address handle. Sends that name it afterwards fail.
	Close() error
}

// SealedAH is implemented by address handles of providers with CapSeal.
type SealedAH interface {
	AH
	// SealNumber identifies AHAttr.Seal among all Seals in use on the NIC. WC.Seal of datagrams sealed with it is the same. It is 0 without
	// a Seal.
	SealNumber() uint32
}

// AHHandle identifies an address handle in a work request; 0 means no handle. The value is
// untrusted: providers look it up and never use it as a pointer.
type AHHandle uint64

// AHAttr is an address vector: the path to a remote port (struct ibv_ah_attr).
type AHAttr struct {
	// DGID is the destination. RoCE requires it; InfiniBand can use DLID instead.
	DGID GID
	// SGIDIndex is the row of the local GID table that holds the source address.
	SGIDIndex int
	// FlowLabel is the 20-bit IPv6 flow label. On RoCE v2 it determines the UDP source port, which
	// switches hash to choose among equal-cost paths (ECMP). Zero lets the NIC choose.
	FlowLabel    uint32
	HopLimit     uint8  // zero means 64
	TrafficClass uint8  // IP traffic class (IPv4: TOS)
	DLID         uint16 // destination LID, InfiniBand only
	SL           uint8  // service level, 0 to 15
	Port         uint8  // the local port; zero means 1
	// Seal encrypts the datagrams to the address. It must be the Seal of the QPs that use the
	// address, unless theirs is AnySeal. Nil means plain packets.
	Seal Seal
}

// Corker is implemented by contexts of devices whose cost of sending packets far exceeds the cost
// of posting. Between Cork and Uncork the device may collect the packets of posts; Uncork sends
// them. Every Cork needs a prompt Uncork, or peers wait. Several goroutines may cork concurrently.
type Corker interface {
	// Cork starts collecting packets.
	Cork()
	// Uncork undoes one Cork and sends the collected packets.
	Uncork()
}
