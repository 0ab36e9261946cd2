package peer

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"ibverbx"
	"ibverbx/internal/strictjson"
	"ibverbx/verbs"
)

// OfferVersion is the version of encoded and accepted offers.
const OfferVersion = 3

// maxOffer is the maximum size of an offer in bytes.
const maxOffer = 16 << 10

// Range holds one side's limits for a negotiated number.
type Range struct {
	// Want is the preferred value; 0 lets the peer choose.
	Want int `json:"want"`
	// Min is the smallest accepted value.
	Min int `json:"min"`
	// Max is the largest supported value.
	Max int `json:"max"`
}

// Offer is the first message of the negotiation. It does not contain addresses or keys.
type Offer struct {
	// Version is OfferVersion.
	Version int `json:"version"`
	// Rails are the NIC ports.
	Rails []OfferRail `json:"rails"`
	// Schemes are the accepted schemes in order of preference.
	Schemes []ibverbx.Scheme `json:"schemes"`
	// Lanes is the number of lanes.
	Lanes Range `json:"lanes"`
	// SendDepth is the send queue depth in requests.
	SendDepth Range `json:"send_depth"`
	// RecvDepth is the receive queue depth in requests.
	RecvDepth Range `json:"recv_depth"`
	// LaneDepth is the depth of one lane in requests.
	LaneDepth Range `json:"lane_depth"`
	// Fragment is the fragment size in bytes.
	Fragment Range `json:"fragment"`
	// MTU is the path MTU in bytes.
	MTU Range `json:"mtu"`
	// Failover reports whether the side can rebuild lanes.
	Failover bool `json:"failover"`
	// Transport is the transport of the rails. Earlier versions omit it.
	Transport Transport `json:"transport,omitempty"`
	// Link negotiates shared memory.
	Link OfferLink `json:"link,omitzero"`
	// Seal is "on" if the side wants sealed packets, "off" if it has disabled sealing, and "unable" if one of its NICs cannot seal or the
	// connection is not encrypted.
	Seal string `json:"seal"`
}

// Values of Offer.Seal.
const (
	sealOn     = "on"
	sealOff    = "off"
	sealUnable = "unable"
)

// OfferRail is one NIC port.
type OfferRail struct {
	// Device is the device name.
	Device string `json:"device"`
	// Network is the network type: "memory", "infiniband" or "roce".
	Network string `json:"network"`
}

// Limits of an Offer, the same as in ibverbx.Config.
const (
	maxLanes    = 4094
	maxDepth    = 1 << 16
	maxFragment = 1 << 30
	maxMTU      = 4096
	maxDevice   = 64
	// maxTransport is the maximum length of a transport's name.
	maxTransport = 16
)

// network returns the type of a device's network.
func network(attr *verbs.DeviceAttr, port *verbs.PortAttr) string {
	switch {
	case attr.Link == "memory" || attr.Link == "fault":
		return "memory"
	case port.LinkLayer == verbs.LinkLayerInfiniBand:
		return "infiniband"
	}
	return "roce"
}

// newOffer builds the local offer from the Config and the NICs' capabilities. secret is set if the two sides share a secret.
func (c *Config) newOffer(rails []ibverbx.RailConfig, secret bool) (*Offer, error) {
	o := &Offer{Version: OfferVersion, Schemes: c.Schemes, Failover: !c.NoFailover, Transport: TransportOf(rails), Seal: sealOn}
	if !secret {
		o.Seal = sealUnable
	}
	qps, wrs, mtu, msg := math.MaxInt, math.MaxInt, maxMTU, uint64(maxFragment)
	var failed error // of the last device that has failed
	for i := range rails {
		ctx, port := rails[i].Context, max(int(rails[i].Port), 1)
		if ctx == nil {
			return nil, verbs.Invalidf("rail %d has no Context", i)
		}
		name := ctx.Device().Name()
		o.Rails = append(o.Rails, OfferRail{Device: strings.ToValidUTF8(name[:min(len(name), maxDevice)], "")})
		attr, err := ctx.QueryDevice()
		var p verbs.PortAttr
		if err == nil {
			p, err = ctx.QueryPort(port)
		}
		if errors.Is(err, verbs.ErrDeviceFatal) {
			failed = fmt.Errorf("rail %d: %w", i, err)
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("rail %d: %w", i, err)
		}
		if attr.Capabilities&verbs.CapSeal == 0 {
			o.Seal = sealUnable
		}
		o.Rails[i].Network = network(&attr, &p)
		qps, wrs, mtu, msg = min(qps, attr.MaxQP), min(wrs, attr.MaxQPWR), min(mtu, p.ActiveMTU.Bytes()), min(msg, attr.MaxMsgSize)
	}
	if c.Unsealed {
		o.Seal = sealOff
	}
	if err := o.assumeNetworks(failed); err != nil {
		return nil, err
	}
	bound := func(want, least, most int) Range { return Range{Want: want, Min: max(least, 1), Max: most} }
	o.Lanes = bound(c.QP.Lanes, c.Minimum.Lanes, min(maxLanes, max(qps-2, 1)*len(rails)))
	o.SendDepth = bound(c.QP.SendDepth, c.Minimum.SendDepth, maxDepth)
	o.RecvDepth = bound(c.QP.RecvDepth, c.Minimum.RecvDepth, min(maxDepth, wrs))
	o.LaneDepth = bound(c.QP.LaneDepth, c.Minimum.LaneDepth, min(maxDepth, wrs))
	o.Fragment = bound(int(c.QP.FragmentSize), c.Minimum.FragmentSize, int(msg))
	o.MTU = bound(c.MTU, max(c.Minimum.MTU, verbs.MTU256.Bytes()), mtu)
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("Config asks for more than the NICs of this side support: %w", err)
	}
	return o, nil
}

// assumeNetworks gives rails whose device has failed the network of another rail. It returns failed if all devices have failed.
func (o *Offer) assumeNetworks(failed error) error {
	i := slices.IndexFunc(o.Rails, func(r OfferRail) bool { return r.Network != "" })
	if i < 0 {
		return failed
	}
	for k := range o.Rails {
		o.Rails[k].Network = cmp.Or(o.Rails[k].Network, o.Rails[i].Network)
	}
	return nil
}

// Validate returns verbs.ErrInvalid for the first invalid value, or nil.
func (o *Offer) Validate() error {
	if o.Version != OfferVersion {
		return verbs.Invalidf("offer has version %d, this side has version %d", o.Version, OfferVersion)
	}
	if len(o.Rails) < 1 || len(o.Rails) > ibverbx.MaxRails {
		return verbs.Invalidf("%d rails: want 1 to %d", len(o.Rails), ibverbx.MaxRails)
	}
	for i, r := range o.Rails {
		if len(r.Device) > maxDevice || (r.Network != "memory" && r.Network != "infiniband" && r.Network != "roce") {
			return verbs.Invalidf("rail %d: device %.64q on network %.64q", i, r.Device, r.Network)
		}
	}
	if err := o.Link.validate(); err != nil {
		return err
	}
	if len(o.Transport) > maxTransport {
		return verbs.Invalidf("transport %.64q: want at most %d bytes", o.Transport, maxTransport)
	}
	if o.Seal != sealOn && o.Seal != sealOff && o.Seal != sealUnable {
		return verbs.Invalidf("seal is %.64q: want %q, %q or %q", o.Seal, sealOn, sealOff, sealUnable)
	}
	if len(o.Schemes) < 1 || len(o.Schemes) > 3 {
		return verbs.Invalidf("%d schemes: want 1 to 3", len(o.Schemes))
	}
	for _, s := range o.Schemes {
		if s > ibverbx.Spray {
			return verbs.Invalidf("unknown scheme %d", s)
		}
	}
	for _, f := range [...]struct {
		name  string
		r     Range
		bound int
	}{
		{"lanes", o.Lanes, maxLanes},
		{"send depth", o.SendDepth, maxDepth},
		{"receive depth", o.RecvDepth, maxDepth},
		{"lane depth", o.LaneDepth, maxDepth},
		{"fragment size", o.Fragment, maxFragment},
		{"MTU", o.MTU, maxMTU},
	} {
		if f.r.Min < 1 || f.r.Max < f.r.Min || f.r.Max > f.bound || f.r.Want < 0 {
			return verbs.Invalidf("%s: %d wanted, at least %d needed, at most %d possible: the limit is %d", f.name, f.r.Want, f.r.Min, f.r.Max, f.bound)
		}
	}
	for _, mtu := range []int{o.MTU.Want, o.MTU.Max} {
		if _, err := verbs.MTUOf(mtu); err != nil && mtu != 0 {
			return err
		}
	}
	return nil
}

// decodeOffer decodes and validates a peer's offer. It ignores fields of later versions.
func decodeOffer(b []byte) (*Offer, error) {
	o := &Offer{}
	if err := strictjson.DecodeKnown(b, maxOffer, o); err != nil {
		return nil, fmt.Errorf("decode offer: %w: %w", verbs.ErrInvalid, err)
	}
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("decode offer: %w", err)
	}
	return o, nil
}
