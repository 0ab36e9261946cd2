package node

import (
	"cmp"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime"
	"time"

	"ibverbx/bootstrap"
	"ibverbx/peer"
	"ibverbx/verbs"
)

// DefaultPort is the port used when an address does not specify one.
const DefaultPort = "18510"

// Config configures a Node. Auth is required; the zero value of every other field selects its default.
type Config struct {
	// Auth configures authentication by certificate or token. Auth.Name identifies this process to its peers: with a Name, a restarted
	// process remains the same Peer; without one, each process is a separate Peer. Names must be unique among processes that share a
	// certificate or token. Auth.Authorize must be nil: use Config.Authorize.
	Auth bootstrap.Config
	// Listen is the address peers dial: "host:port", or ":port" for all addresses. If it is empty, the Node only dials.
	Listen string
	// Open opens the NICs instead of Fabric, for example on a memory link. The Node closes them.
	Open func() (peer.NICs, error)
	// Fabric describes the NICs and the way sessions use them. Its Provider defaults to peer.ProviderAuto: all real NICs or, without an
	// active port, a software NIC. With shared memory, the NICs execute WRITEs and READs in the peer's memory and send the rest as packets;
	// the peer must allow it too. Lanes is at most MaxLanes; raise it if a few peers must saturate fast NICs.
	peer.Fabric
	// Shards is the number of goroutines that can drive sessions concurrently, at most 64. Zero means a quarter of GOMAXPROCS, at least 1
	// and at most 8. It applies to the default realm; other realms start with one shard. Shards are added when the completion queues of
	// existing ones are full.
	Shards int
	// Window limits a session's outstanding bytes, from 64 KiB to 1 GiB. Zero means 8 MiB. A small operation queues behind at most one
	// window.
	Window int
	// IdleAfter is the idle time before a session is parked. Zero means 5 minutes; negative disables parking.
	IdleAfter time.Duration
	// LostTimeout is the reconnect timeout. Operations for a lost peer then fail with ErrPeerGone, and a peer that this side never dialed
	// is removed. Zero means 60 s; negative means never.
	LostTimeout time.Duration
	// Authorize admits an authenticated peer and assigns its realm. It runs before the peer receives any address or key, and several times
	// a second while it is connected; an error closes the session. It must not block. Nil admits all peers to realm "".
	Authorize func(bootstrap.Peer) (Grant, error)
	// Log receives a record when a peer connects, is lost, returns, leaves or is refused, and when a session loses a rail or lane and
	// recovers it (ibverbx.Config.Log). Losses are at level Warn. Its Handler must not block, and must not call the Node or its Peers. Nil
	// disables logging.
	Log *slog.Logger

	// cqDepth is the completion queue depth, for tests with many Nodes. Zero means the default.
	cqDepth int
}

// Grant is the result of Config.Authorize for an admitted peer.
type Grant struct {
	// Realm is the peer's realm, at most 64 bytes. Peers in different realms cannot access each other's memory. A Node supports 64 realms.
	// A known peer cannot change its realm: its next session is refused.
	Realm string
}

// Bounds and defaults of a Config.
const (
	defaultWindow = 8 << 20
	minWindow     = 64 << 10
	maxWindow     = 1 << 30
	defaultIdle   = 5 * time.Minute
	defaultGiveUp = time.Minute
	maxIncarnate  = 1<<53 - 1
)

// MaxLanes is the maximum of Config.Fabric.Lanes on a Node.
const MaxLanes = 256

// withDefaults returns c with defaults applied, or an error if it is invalid.
func (c Config) withDefaults() (Config, error) {
	c.Shards = cmp.Or(c.Shards, min(8, max(1, runtime.GOMAXPROCS(0)/4)))
	c.Window = cmp.Or(c.Window, defaultWindow)
	c.IdleAfter = cmp.Or(c.IdleAfter, defaultIdle)
	c.LostTimeout = cmp.Or(c.LostTimeout, defaultGiveUp)
	c.Auth.Incarnation = cmp.Or(c.Auth.Incarnation, rand.Uint64N(maxIncarnate)+1)
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.Link = c.EffectiveLink(c.Open != nil)
	switch err := c.CheckFabric(); {
	case err != nil:
		return c, err
	case c.Auth.Authorize != nil:
		return c, verbs.Invalidf("Config.Auth.Authorize is set: use Config.Authorize")
	case c.Lanes > MaxLanes:
		return c, &peer.FabricError{Field: "Lanes", Problem: fmt.Sprintf("a Node has at most %d; use 1 to %d", MaxLanes, MaxLanes)}
	case c.Shards < 0 || c.Shards > maxShards:
		return c, verbs.Invalidf("Config.Shards is %d: want at most %d", c.Shards, maxShards)
	case c.Window < minWindow || c.Window > maxWindow:
		return c, verbs.Invalidf("Config.Window is %d: want %d to %d", c.Window, minWindow, maxWindow)
	}
	return c, nil
}

// openNICs opens the NICs.
func (c *Config) openNICs() (peer.NICs, error) {
	if c.Open != nil {
		return c.OpenWith(c.Open)
	}
	local := c.Local
	if !local.IsValid() && len(c.Addrs) == 0 {
		var err error
		if local, err = softAddr(c.Listen); err != nil {
			return peer.NICs{}, err
		}
	}
	f := c.Fabric
	f.Provider = cmp.Or(f.Provider, peer.ProviderAuto)
	return f.OpenNICs(local)
}

// softAddr returns a software NIC's address: the IP address in listen, or the host's first global address.
func softAddr(listen string) (netip.Addr, error) {
	if ap, err := netip.ParseAddrPort(listen); err == nil && !ap.Addr().IsUnspecified() {
		return ap.Addr().Unmap(), nil
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return netip.Addr{}, fmt.Errorf("addresses of this host: %w", err)
	}
	best := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	for _, a := range addrs {
		p, err := netip.ParsePrefix(a.String())
		if err != nil || !p.Addr().IsGlobalUnicast() {
			continue
		}
		if p.Addr().Is4() {
			return p.Addr(), nil
		}
		if best.IsLoopback() {
			best = p.Addr()
		}
	}
	return best, nil
}
