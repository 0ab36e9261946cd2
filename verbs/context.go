package verbs

// Context is an open device: the root of all objects made on it.
type Context interface {
	// Device returns the device that was opened.
	Device() Device
	// QueryDevice returns what the device is and where its limits lie.
	QueryDevice() (DeviceAttr, error)
	// QueryPort returns the state of a port; ports count from 1.
	QueryPort(port int) (PortAttr, error)
	// QueryGID returns row index of a port's GID table, ErrNotFound if it is empty.
	QueryGID(port, index int) (GIDEntry, error)

	// AllocPD returns a new protection domain.
	AllocPD() (PD, error)
	// CreateCQ returns a new completion queue.
	CreateCQ(cfg CQConfig) (CQ, error)

	// Events takes up to len(dst) asynchronous events and never blocks. After a
	// device failure, and once all events were taken, it returns ErrDeviceFatal.
	Events(dst []Event) (n int, err error)
	// NotifyEvents makes w be woken whenever an event is queued; nil ends that. If
	// events are queued already w is woken at once, so none is missed.
	NotifyEvents(w *Waker) error

	// Close destroys every object still open in the Context, in the right order,
	// and then the Context, as the kernel does when a process ends.
	Close() error
}

// PD is a protection domain: QPs can only use memory, SRQs and address handles of
// their own PD.
type PD interface {
	// RegisterMemory makes m known to the NIC. While it is registered m cannot be
	// freed. AccessLocalWrite must be set if AccessRemoteWrite or
	// AccessRemoteAtomic is (ibv_reg_mr(3)).
	RegisterMemory(m *Memory, access Access) (MR, error)
	// RegisterDMABuf registers length bytes at offset of a dma-buf, known to the
	// NIC under the address iova. ErrNotSupported unless the device has CapDMABuf.
	RegisterDMABuf(fd int, offset, length, iova uint64, access Access) (MR, error)
	// CreateQP returns a new QP in RESET.
	CreateQP(cfg QPConfig) (QP, error)
	// CreateSRQ returns a new shared receive queue.
	CreateSRQ(cfg SRQConfig) (SRQ, error)
	// CreateAH returns a new address handle, for UD sends.
	CreateAH(attr AHAttr) (AH, error)
	// Close frees the PD; ErrBusy while objects stand on it.
	Close() error
}

// MR is a registered memory region.
type MR interface {
	// Addr is the address of the first byte as work requests name it.
	Addr() uint64
	// Len is the number of bytes.
	Len() uint64
	// LKey goes into the SGEs of local work requests, RKey to the peer.
	LKey() uint32
	RKey() uint32
	// Close deregisters the region. Work requests and remote accesses that still
	// name its keys fail with a protection or access error; memory is not touched
	// through the region after Close returns.
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

	// AccessAll is everything that a peer and the local side may do.
	AccessAll = AccessLocalWrite | AccessRemoteWrite | AccessRemoteRead | AccessRemoteAtomic
)

// AH is an address handle: where a UD send goes.
type AH interface {
	// Handle is the value for SendWR.AH.
	Handle() AHHandle
	Close() error
}

// AHHandle names an address handle in a work request; 0 names none. It comes from the
// caller: a provider looks it up and never takes it for an address.
type AHHandle uint64

// AHAttr is an address vector: the way to a port (struct ibv_ah_attr).
type AHAttr struct {
	// DGID is the destination. RoCE needs it; plain InfiniBand can do with DLID.
	DGID GID
	// SGIDIndex is the row of the own GID table that is the source.
	SGIDIndex    int
	FlowLabel    uint32
	HopLimit     uint8 // zero means 64
	TrafficClass uint8
	DLID         uint16
	SL           uint8
	Port         uint8 // the local port; zero means 1
}
