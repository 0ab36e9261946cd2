package verbs

// Context is an open device. All other objects are created from it.
type Context interface {
	// Device returns the device that was opened.
	Device() Device
	// QueryDevice returns the device's identity and limits.
	QueryDevice() (DeviceAttr, error)
	// QueryPort returns the state of a port. Ports are numbered from 1.
	QueryPort(port int) (PortAttr, error)
	// QueryGID returns row index of a port's GID table, or ErrNotFound if the row is empty.
	QueryGID(port, index int) (GIDEntry, error)

	// AllocPD returns a new protection domain.
	AllocPD() (PD, error)
	// CreateCQ returns a new completion queue.
	CreateCQ(cfg CQConfig) (CQ, error)

	// Events takes up to len(dst) asynchronous events and never blocks. After a
	// device failure it delivers the remaining events, then returns ErrDeviceFatal.
	Events(dst []Event) (n int, err error)
	// NotifyEvents wakes w whenever an event is queued; nil stops that. If events
	// are already queued it wakes w at once, so none is missed.
	NotifyEvents(w *Waker) error

	// Close destroys every object still open in the Context, in dependency order,
	// and then the Context, as the kernel does when a process exits.
	Close() error
}

// PD is a protection domain. A QP can only use memory, SRQs and address handles of its
// own PD.
type PD interface {
	// RegisterMemory registers m with the NIC. Registered memory cannot be freed.
	// AccessRemoteWrite and AccessRemoteAtomic require AccessLocalWrite
	// (ibv_reg_mr(3)). A NIC that cannot reach memory of a device returns ErrNotSupported, and
	// INLINE requests cannot use such memory.
	RegisterMemory(m *Memory, access Access) (MR, error)
	// RegisterDMABuf registers length bytes of a dma-buf, starting at offset. Work
	// requests address them from iova, which must have the same place in a page as
	// offset. fd may be closed afterwards. INLINE requests cannot use the region,
	// because the CPU reads their bytes. It needs CapDMABuf, else ErrNotSupported.
	RegisterDMABuf(fd int, offset, length, iova uint64, access Access) (MR, error)
	// CreateQP returns a new QP in RESET.
	CreateQP(cfg QPConfig) (QP, error)
	// CreateSRQ returns a new shared receive queue.
	CreateSRQ(cfg SRQConfig) (SRQ, error)
	// CreateAH returns a new address handle, for UD sends.
	CreateAH(attr AHAttr) (AH, error)
	// Close frees the PD. It returns ErrBusy while objects of the PD exist.
	Close() error
}

// MR is a registered memory region.
type MR interface {
	// Addr is the address of the first byte, as used in work requests.
	Addr() uint64
	// Len is the number of bytes.
	Len() uint64
	// LKey goes into the SGEs of local work requests.
	LKey() uint32
	// RKey goes into the work requests of the peer.
	RKey() uint32
	// Close deregisters the region. Work requests and remote accesses that still
	// use its keys fail with a protection or access error. After Close returns the
	// NIC does not touch the memory through this region.
	Close() error
}

// Access is a set of permissions on a memory region or a QP.
type Access uint32

// Access flags, numbered as in enum ibv_access_flags. Local reads are always allowed.
const (
	AccessLocalWrite   Access = 1 << 0
	AccessRemoteWrite  Access = 1 << 1
	AccessRemoteRead   Access = 1 << 2
	AccessRemoteAtomic Access = 1 << 3
	// AccessRelaxedOrdering is a hint that providers may ignore.
	AccessRelaxedOrdering Access = 1 << 20

	// AccessAll allows every local and remote operation.
	AccessAll = AccessLocalWrite | AccessRemoteWrite | AccessRemoteRead | AccessRemoteAtomic
)

// AH is an address handle: the destination of a UD send.
type AH interface {
	// Handle is the value for SendWR.AH.
	Handle() AHHandle
	Close() error
}

// AHHandle names an address handle in a work request; 0 names none. The value comes
// from the caller, so a provider looks it up and never uses it as a pointer.
type AHHandle uint64

// AHAttr is an address vector: the path to a remote port (struct ibv_ah_attr).
type AHAttr struct {
	// DGID is the destination. RoCE requires it; InfiniBand can use DLID instead.
	DGID GID
	// SGIDIndex is the row of the local GID table that holds the source address.
	SGIDIndex int
	// FlowLabel has 20 bits. It is part of IPv6 headers, and on RoCE v2 it decides the UDP source port, by
	// which switches choose among equal paths (ECMP). Zero means that the NIC chooses.
	FlowLabel    uint32
	HopLimit     uint8 // zero means 64
	TrafficClass uint8
	DLID         uint16
	SL           uint8
	Port         uint8 // the local port; zero means 1
	// Seal is that of the QPs that use the address: see PathConfig.Seal. Nil means plain packets.
	Seal Seal
}

// Corker is implemented by contexts of devices to which handing over packets costs much more than
// posting. Between Cork and Uncork the device may collect what posts to its QPs send. Uncork sends it.
// Every Cork needs an Uncork soon afterwards, or the peers wait. Several goroutines may cork at once.
type Corker interface {
	Cork()
	Uncork()
}
