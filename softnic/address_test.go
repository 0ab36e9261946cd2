package softnic_test

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"ibverbx/softnic"
	"ibverbx/verbs"
)

// identity holds the GUID and the GIDs of a NIC.
type identity struct {
	guid verbs.GUID
	gids [2]verbs.GID
}

func identify(t *testing.T, nic *softnic.NIC, ctx verbs.Context) identity {
	t.Helper()
	id := identity{guid: nic.GUID()}
	for i := range id.gids {
		e, err := ctx.QueryGID(1, i)
		must(t, err)
		id.gids[i] = e.GID
	}
	return id
}

func virtualLink() *softnic.MemoryLink {
	return softnic.NewMemoryLink(&softnic.MemoryConfig{Now: func() int64 { return 0 }})
}

// TestAutomaticAddressIsFree: a NIC without a configured address gets an unused one, regardless of the
// addresses that other NICs have chosen.
func TestAutomaticAddressIsFree(t *testing.T) {
	link := virtualLink()
	seen := map[verbs.GID]bool{}
	add := func(cfg softnic.Config) identity {
		t.Helper()
		nic, ctx, _ := plugConfig(t, link, cfg)
		t.Cleanup(func() { must(t, nic.Close()) })
		id := identify(t, nic, ctx)
		for _, gid := range id.gids {
			if seen[gid] {
				t.Errorf("GID %s is that of two NICs", gid)
			}
			seen[gid] = true
		}
		return id
	}
	addr := add(softnic.Config{}).gids[1].Addr()
	for range 4 { // take every other one of the next addresses
		addr = addr.Next().Next()
		add(softnic.Config{Addr: addr})
	}
	for range 8 {
		add(softnic.Config{})
	}
}

// TestAddressesRefused: an invalid port address, or one already in the GID table of another NIC on the link,
// is refused, and the link keeps working.
func TestAddressesRefused(t *testing.T) {
	link := virtualLink()
	nic, ctx, _ := plug(t, link)
	id := identify(t, nic, ctx)
	for _, addr := range []netip.Addr{
		netip.IPv6Unspecified(), netip.IPv4Unspecified(),
		netip.MustParseAddr("224.0.0.1"), netip.MustParseAddr("ff02::1"), netip.MustParseAddr("255.255.255.255"),
		netip.MustParseAddr("::ffff:0.0.0.0"), netip.MustParseAddr("fe80::1%eth0"),
		id.gids[0].Addr(), id.gids[1].Addr(),
	} {
		n, err := softnic.New(link, softnic.Config{Addr: addr})
		if !errors.Is(err, verbs.ErrInvalid) || n != nil {
			t.Errorf("New with address %s = %v, %v; want ErrInvalid", addr, n, err)
		}
	}
	plug(t, link)

	// A new NIC does not share a link-local address already in use.
	link = virtualLink()
	taken, ctx, _ := plugConfig(t, link, softnic.Config{Addr: netip.MustParseAddr("fe80::200:ff:fe00:2")})
	t.Cleanup(func() { must(t, taken.Close()) })
	id = identify(t, taken, ctx)
	if n, err := softnic.New(link, softnic.Config{}); err == nil {
		ctx, err := n.Open()
		must(t, err)
		if identify(t, n, ctx).gids[0] == id.gids[1] {
			t.Errorf("GID %s is that of two NICs", id.gids[1])
		}
		must(t, n.Close())
	} else if !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("New with a link-local address that is taken = %v, want ErrInvalid", err)
	}
}

// TestLinksDiffer: the NICs of two links in real time have different GUIDs and GIDs, so that their QPs cannot
// be connected by mistake. In virtual time they are the same in every run.
func TestLinksDiffer(t *testing.T) {
	// Addresses are drawn from 131,072: three draws are not all the same.
	var reals, virtuals [3]identity
	for i := range reals {
		nic, ctx, _ := plug(t, softnic.NewMemoryLink(nil))
		reals[i] = identify(t, nic, ctx)
		nic, ctx, _ = plug(t, virtualLink())
		virtuals[i] = identify(t, nic, ctx)
	}
	same := func(field func(identity) any) bool {
		return field(reals[0]) == field(reals[1]) && field(reals[1]) == field(reals[2])
	}
	if same(func(id identity) any { return id.guid }) {
		t.Errorf("three links gave the GUID %v", reals[0].guid)
	}
	if same(func(id identity) any { return id.gids[0] }) {
		t.Errorf("three links gave the GID %s", reals[0].gids[0])
	}
	if same(func(id identity) any { return id.gids[1] }) {
		t.Errorf("three links gave the GID %s", reals[0].gids[1])
	}
	if virtuals[0] != virtuals[1] || virtuals[1] != virtuals[2] {
		t.Errorf("links on virtual time differ: %+v", virtuals)
	}
}

// TestZeroWaker: a zero Waker has no token, but wakes verbs.Wait.
func TestZeroWaker(t *testing.T) {
	_, ctx, pd := plug(t, softnic.NewMemoryLink(nil))
	var w verbs.Waker
	cq, err := ctx.CreateCQ(verbs.CQConfig{Depth: 4, Waker: &w})
	must(t, err)
	q, err := pd.CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: cq, RecvCQ: cq, MaxRecvWR: 4})
	must(t, err)
	must(t, verbs.InitQP(q, 1))
	postRecv(t, q, make([]verbs.RecvWR, 1))
	limit, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	flushed := make(chan error)
	go func() {
		time.Sleep(2 * time.Millisecond) // Wait is asleep by then, mostly
		flushed <- q.Modify(verbs.QPAttr{State: verbs.StateErr}, verbs.AttrState)
	}()
	var wcs [1]verbs.WC
	if n, err := verbs.Wait(limit, cq, &w, wcs[:]); n != 1 || err != nil {
		t.Errorf("Wait = %d, %v; want the flushed receive", n, err)
	}
	must(t, <-flushed)
}
