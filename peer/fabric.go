package peer

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"ibverbx"
	"ibverbx/internal/closer"
	"ibverbx/reliable"
	"ibverbx/verbs"
)

// Fabric describes the NICs of a process and the way its Sessions use them. It is part of Config and node.Config, and package settings fills
// it from flags and environment variables. The zero value of every field selects its default. The two sides may use different Fabrics.
type Fabric struct {
	// Provider selects real or software NICs. Empty means ProviderAuto on a Node, and ProviderSoftNIC elsewhere.
	Provider Provider
	// Devices selects real NICs, see OpenDevices. Empty means all.
	Devices string
	// Addrs are the addresses of software NICs, each of this host. Rail i uses address i, round-robin.
	Addrs []netip.Addr
	// Local is the address of the software NIC if Addrs is empty. It neither selects software NICs
	// nor prevents shared memory. Zero means the local address of the peer's connection or, on a
	// Node, the host in node.Config.Listen or the host's first global address.
	Local netip.Addr
	// RailCount is the number of rails, at most ibverbx.MaxRails. Zero means one per address, or all devices.
	RailCount int
	// Lanes is the number of lanes of a Session. Zero means one per rail, at least 2, on a Node; elsewhere see Config.QP.
	Lanes int

	// Link selects shared memory or packets between processes on one host if all rails are UDP software NICs. Shared memory replaces the
	// rails one by one or, with Config.SharedCQ, is used beside them. Empty means LinkAuto, or LinkUDP if Config opens the NICs itself.
	// Software NICs with Addrs, Impair or Capture use LinkUDP.
	Link Link
	// Transport is the reliability layer below the lanes, the same on both sides. Empty means TransportRC.
	Transport Transport
	// Reliable configures TransportUC and TransportUD, which set its Carrier.
	Reliable reliable.Config
	// Path applies to every rail with a zero Path: quality of service, retries and table indexes of this side.
	Path verbs.PathConfig
	// GIDIndex holds GID table indexes: one per rail, or one for all rails. It overrides Path.GIDIndex. If it is empty, the provider chooses.
	GIDIndex []int

	// PeerNetworks are additional networks allowed for the peer's NICs; routed fabrics need them. By default a NIC must be on one of this
	// host's networks, have the peer's connection address, or be listed in its certificate.
	PeerNetworks []netip.Prefix
	// Unsealed disables sealing, the encryption and authentication of packets (docs/wire.md). On-path attackers can then read and modify
	// all data and abort the session. Both sides must set it to the same value. By default, packets are sealed if the connection uses TLS
	// and all NICs on both sides support it; only software NICs over UDP do (Agreement.Sealed).
	Unsealed bool
	// RequireSealed makes an unsealed Session fail with a MismatchError before any key is sent: over plain text, or with a NIC that cannot
	// seal. Shared memory that does not use packets is accepted.
	RequireSealed bool

	// Impair makes software NICs lose, delay or damage packets.
	Impair []Impair
	// Capture receives the packets of software NICs. The caller closes it after the NICs.
	Capture *Capture
}

// Provider is a kind of NICs.
type Provider string

// Providers.
const (
	// ProviderAuto opens real NICs if one has an active port, or Devices selects some; otherwise software NICs.
	ProviderAuto Provider = "auto"
	// ProviderSoftNIC opens software NICs, which use RoCEv2 over UDP and need neither hardware nor privileges.
	ProviderSoftNIC Provider = "softnic"
	// ProviderRDMACore opens real NICs through libibverbs.
	ProviderRDMACore Provider = "rdmacore"
)

// Transport is the reliability layer below the lanes.
type Transport string

// Transports.
const (
	// TransportRC uses the NICs' RC QPs.
	TransportRC Transport = "rc"
	// TransportUC uses RC QPs that package reliable builds on many UC QPs each. It needs NICs with UC.
	TransportUC Transport = "uc"
	// TransportUD is TransportUC over UD QPs, which all QPs of a NIC share. It is for NICs without
	// UC.
	TransportUD Transport = "ud"
)

// Carrier returns the type of QPs that carry the paths of package reliable, or 0 if the NIC is reliable itself.
func (t Transport) Carrier() verbs.QPType {
	switch t {
	case TransportUC:
		return verbs.UC
	case TransportUD:
		return verbs.UD
	default:
		return 0
	}
}

// TransportOf returns the transport of open rails.
func TransportOf(rails []ibverbx.RailConfig) Transport {
	for i := range rails {
		if r, ok := rails[i].Context.(reliable.TransportReporter); ok {
			return Transport(r.Carrier())
		}
	}
	return TransportRC
}

// FabricError is an invalid field of a Fabric, or two that contradict each other. It wraps verbs.ErrInvalid.
type FabricError struct {
	// Field is the name of the field, for example "Link" or "Path.PKeyIndex". With is the other field, or empty.
	Field, With string
	// Problem states the cause and the fix, without field names.
	Problem string
	// Cause is the underlying error, or nil.
	Cause error
}

// Error implements error.
func (e *FabricError) Error() string {
	if e.With != "" {
		return fmt.Sprintf("Fabric.%s with Fabric.%s: %s", e.Field, e.With, e.Problem)
	}
	return fmt.Sprintf("Fabric.%s: %s", e.Field, e.Problem)
}

// Unwrap returns the cause and verbs.ErrInvalid.
func (e *FabricError) Unwrap() []error {
	if e.Cause == nil {
		return []error{verbs.ErrInvalid}
	}
	return []error{e.Cause, verbs.ErrInvalid}
}

// usesPackets reports whether the software NICs must exchange packets.
func (f *Fabric) usesPackets() bool { return len(f.Addrs)+len(f.Impair) > 0 || f.Capture != nil }

// softOnlyField returns the name of a field that only software NICs support, or "".
func (f *Fabric) softOnlyField() string {
	switch {
	case len(f.Impair) > 0:
		return "Impair"
	case f.Capture != nil:
		return "Capture"
	}
	return ""
}

// CheckFabric returns a *FabricError for an invalid field, and for fields that contradict each other.
func (f *Fabric) CheckFabric() error {
	soft := f.softOnlyField()
	switch {
	case !slices.Contains([]Provider{"", ProviderAuto, ProviderSoftNIC, ProviderRDMACore}, f.Provider):
		return &FabricError{Field: "Provider", Problem: "there is no such provider; use softnic, rdmacore or auto"}
	case !slices.Contains([]Link{"", LinkAuto, LinkShm, LinkUDP}, f.Link):
		return &FabricError{Field: "Link", Problem: fmt.Sprintf("there is no link %q; use auto, shm or udp", f.Link)}
	case !slices.Contains([]Transport{"", TransportRC, TransportUC, TransportUD}, f.Transport):
		return &FabricError{Field: "Transport", Problem: fmt.Sprintf("there is no transport %q; use rc, uc or ud", f.Transport)}
	case f.RailCount < 0 || f.RailCount > ibverbx.MaxRails:
		return &FabricError{Field: "RailCount", Problem: fmt.Sprintf("use 1 to %d", ibverbx.MaxRails)}
	case f.Lanes < 0 || f.Lanes > maxLanes:
		return &FabricError{Field: "Lanes", Problem: fmt.Sprintf("use 1 to %d", maxLanes)}
	case f.Unsealed && f.RequireSealed:
		return &FabricError{Field: "Unsealed", With: "RequireSealed", Problem: "use one of them"}
	case f.Link == LinkShm && len(f.Addrs) > 0:
		return &FabricError{Field: "Link", With: "Addrs", Problem: "shared memory uses no addresses; use udp or auto"}
	case f.Link == LinkShm && soft != "":
		return &FabricError{Field: "Link", With: soft, Problem: "shared memory uses no packets; use udp or auto"}
	case f.Devices != "" && f.Provider == ProviderSoftNIC:
		return &FabricError{Field: "Devices", With: "Provider", Problem: "software NICs are not devices of this host; use rdmacore or auto"}
	case soft != "" && (f.Provider == ProviderRDMACore || f.Devices != ""):
		return &FabricError{Field: soft, Problem: "packets of real NICs do not pass through this program; use software NICs, or capture and impair them at a switch " +
			"(Soft-RoCE: tc qdisc add dev DEVICE root netem loss 1%)"}
	case slices.ContainsFunc(f.PeerNetworks, func(p netip.Prefix) bool { return !p.IsValid() }):
		return &FabricError{Field: "PeerNetworks", Problem: "a prefix is invalid"}
	}
	return f.checkImpair()
}

// checkOpened refuses fields that select NICs if the caller opens them.
func (f *Fabric) checkOpened(by string) error {
	for _, x := range []struct {
		field string
		set   bool
	}{
		{"Provider", f.Provider != ""},
		{"Devices", f.Devices != ""},
		{"Addrs", len(f.Addrs) > 0},
		{"RailCount", f.RailCount != 0},
		{"Impair", len(f.Impair) > 0},
		{"Capture", f.Capture != nil},
	} {
		if x.set {
			return &FabricError{Field: x.field, Problem: by + " opens the NICs; use one of them"}
		}
	}
	return nil
}

// EffectiveLink returns the Link of NICs opened by the Fabric or, if opened is set, by the caller.
func (f *Fabric) EffectiveLink(opened bool) Link {
	switch {
	case f.Link == LinkShm:
		return LinkShm
	case f.usesPackets() || opened && f.Link == "":
		return LinkUDP
	}
	return cmp.Or(f.Link, LinkAuto)
}

// Opened returns the part of f that a Config with Rails or SharedCQ takes, whose NICs f has opened.
func (f Fabric) Opened() Fabric {
	return Fabric{
		Link: f.EffectiveLink(false), Lanes: f.Lanes, PeerNetworks: f.PeerNetworks, Unsealed: f.Unsealed, RequireSealed: f.RequireSealed,
	}
}

// OpenNICs opens the NICs and applies Path, GIDIndex and Transport to them. local replaces Fabric.Local if that is zero.
func (f Fabric) OpenNICs(local netip.Addr) (NICs, error) {
	if err := f.CheckFabric(); err != nil {
		return NICs{}, err
	}
	f.Local = cmp.Or(f.Local, local)
	real := f.Devices != "" || f.Provider == ProviderRDMACore
	auto := f.Provider == ProviderAuto && !f.usesPackets()
	return f.openWith(func() (NICs, error) {
		if real || auto {
			if n, err := f.openDevices(!real); err == nil || real {
				return n, err
			}
		}
		return f.openSoftNICs()
	})
}

// OpenWith opens NICs with a function such as Config.Open, and applies Path, GIDIndex and Transport to them. f must not select NICs.
func (f *Fabric) OpenWith(open func() (NICs, error)) (NICs, error) {
	if open == nil {
		return NICs{}, verbs.Invalidf("open NICs: the function is nil")
	}
	if err := f.checkOpened("Config.Open"); err != nil {
		return NICs{}, err
	}
	return f.openWith(open)
}

func (f *Fabric) openWith(open func() (NICs, error)) (NICs, error) {
	n, err := open()
	if err != nil {
		return NICs{}, err
	}
	if err := f.Prepare(&n); err != nil {
		return NICs{}, errors.Join(err, n.close())
	}
	return n, nil
}

// Prepare applies Path, GIDIndex and Transport to open NICs. Rails with a Path keep it, except its GIDIndex. With TransportUC or TransportUD, Prepare
// replaces the rails' Contexts, and Close closes the new ones too. After an error the caller closes the NICs.
func (f *Fabric) Prepare(n *NICs) error {
	if n == nil {
		return verbs.Invalidf("prepare NICs: the NICs are nil")
	}
	rails, err := f.withPaths(n.Rails)
	if err != nil {
		return err
	}
	n.Rails = rails
	cfg := f.Reliable
	if cfg.Carrier = f.Transport.Carrier(); cfg.Carrier == 0 {
		return nil
	}
	var wrapped closer.Stack
	if n.Close != nil {
		wrapped.Add(n.Close)
	}
	n.Close = wrapped.Close
	for i := range n.Rails {
		ctx, err := reliable.Wrap(n.Rails[i].Context, cfg)
		if err != nil {
			err = fmt.Errorf("%s: %w", n.Rails[i].Context.Device().Name(), err)
			return &FabricError{Field: "Transport", Problem: err.Error() + "; use rc", Cause: err}
		}
		wrapped.Add(ctx.Close) // runs first and makes the inner Close a no-op
		n.Rails[i].Context = ctx
	}
	return nil
}

// withPaths returns copies of the rails with Path and GIDIndex.
func (f *Fabric) withPaths(rails []ibverbx.RailConfig) ([]ibverbx.RailConfig, error) {
	rails = slices.Clone(rails)
	rows := len(f.GIDIndex)
	if rows > 1 && rows < len(rails) {
		return nil, &FabricError{Field: "GIDIndex", Problem: fmt.Sprintf("there are rows for %d rails, and %d rails", rows, len(rails))}
	}
	for i := range rails {
		r := &rails[i]
		if r.Path = cmp.Or(r.Path, f.Path); rows > 0 {
			r.Path.GIDIndex = cmp.Or(f.GIDIndex[min(i, rows-1)], verbs.ExplicitZero)
		}
		if r.Context == nil || r.Path == (verbs.PathConfig{}) {
			continue
		}
		port, err := r.Context.QueryPort(int(max(r.Port, 1)))
		if errors.Is(err, verbs.ErrDeviceFatal) {
			continue // the other rails may do without it
		}
		if err != nil {
			return nil, err
		}
		if _, err := r.Path.Check(&port, r.GID); err != nil {
			return nil, f.pathError(r, &port, fmt.Errorf("rail %d (%s): %w", i, r.Context.Device().Name(), err))
		}
	}
	return rails, nil
}

// pathError returns err with the name of the field that the port refuses.
func (f *Fabric) pathError(r *ibverbx.RailConfig, port *verbs.PortAttr, err error) error {
	field, other := "Path", r.Path
	other.PKeyIndex = 0
	if _, still := other.Check(port, r.GID); still == nil {
		field = "Path.PKeyIndex"
	} else if len(f.GIDIndex) > 0 {
		field = "GIDIndex"
	}
	return &FabricError{Field: field, Problem: err.Error(), Cause: err}
}
