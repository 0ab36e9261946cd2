//go:build linux

package softnic_test

import (
	"net/netip"
	"testing"

	"ibverbx/softnic"
	"ibverbx/verbs"
)

// portRig is two NICs on one address, as in two processes, whose GIDs carry their ports.
func portRig(t *testing.T, addr string) (r *rig, gids [2]verbs.GID) {
	t.Helper()
	noRaces(t)
	r = &rig{tb: t}
	for i := range gids {
		link, err := softnic.NewUDPLink(&softnic.UDPConfig{Addrs: []netip.Addr{netip.MustParseAddr(addr)}, PortGIDs: true, AssumeSoftNICs: true})
		must(t, err)
		nic, ctx, pd := plug(t, link)
		row, err := ctx.QueryGID(1, 0)
		must(t, err)
		gids[i] = row.GID
		if i == 0 {
			r.a, r.ca, r.pa = nic, ctx, pd
		} else {
			r.b, r.cb, r.pb = nic, ctx, pd
		}
	}
	return r, gids
}

// TestPortGIDs: NICs on one address can address each other by GIDs alone: with RC, with datagrams, and
// with the response to a datagram, whose GRH contains the sender's GID.
func TestPortGIDs(t *testing.T) {
	r, gids := portRig(t, "127.0.0.11")
	if gids[0] == gids[1] {
		t.Fatalf("both GIDs are %s", gids[0].Addr())
	}
	_, mr := memory(t, r.pa, 64)
	memB, mrB := memory(t, r.pb, 64)
	cqA, cqB := newCQ(t, r.ca, 64), newCQ(t, r.cb, 64)
	sides := [2]struct {
		pd verbs.PD
		cq verbs.CQ
		mr verbs.MR
	}{{r.pa, cqA, mr}, {r.pb, cqB, mrB}}
	for _, typ := range []verbs.QPType{verbs.RC, verbs.UD} {
		var qps [2]verbs.QP
		var ends [2]verbs.Endpoint
		for i, s := range sides {
			var err error
			qps[i], err = s.pd.CreateQP(verbs.QPConfig{Type: typ, MaxSendWR: 4, MaxRecvWR: 4, SendCQ: s.cq, RecvCQ: s.cq})
			must(t, err)
			ends[i], err = qps[i].Endpoint()
			must(t, err)
			ends[i].GID, ends[i].LID, ends[i].Extra = gids[i], 0, nil // all that a C program exchanges
		}
		for i, q := range qps {
			must(t, q.Connect(ends[1-i]))
			recv := verbs.RecvWR{}
			recv.SetSGE(verbs.SGE{Addr: sides[i].mr.Addr(), Length: 64, LKey: sides[i].mr.LKey()})
			postRecv(t, q, []verbs.RecvWR{recv})
		}
		to := gids[1]
		for i, q := range qps {
			wr := verbs.SendWR{Opcode: verbs.OpSend}
			wr.SetSGE(verbs.SGE{Addr: sides[i].mr.Addr(), Length: 8, LKey: sides[i].mr.LKey()})
			if typ == verbs.UD {
				ah, err := sides[i].pd.CreateAH(verbs.AHAttr{DGID: to})
				must(t, err)
				wr.AH, wr.RemoteQPN, wr.RemoteQKey = ah.Handle(), ends[1-i].QPN, ends[1-i].QKey
			}
			if _, err := q.PostSend([]verbs.SendWR{wr}); err != nil {
				t.Fatal(err)
			}
			var wcs [1]verbs.WC
			for n := 0; n == 0; {
				var err error
				n, err = sides[1-i].cq.Poll(wcs[:])
				must(t, err)
			}
			if wcs[0].Status != verbs.StatusSuccess || wcs[0].Opcode != verbs.WCRecv {
				t.Fatalf("%v, side %d: the completion is %+v", typ, 1-i, wcs[0])
			}
			to = verbs.GID(memB.Bytes()[8:24]) // from the GRH
			if typ == verbs.UD && i == 0 && to != gids[0] {
				t.Errorf("the GRH names %s, want %s", to.Addr(), gids[0].Addr())
			}
		}
	}
}

// TestPortGIDsIPv6: an IPv6 GID cannot hold a port.
func TestPortGIDsIPv6(t *testing.T) {
	_, gids := portRig(t, "::1")
	if want := verbs.GIDFromAddr(netip.IPv6Loopback()); gids[0] != want || gids[1] != want {
		t.Errorf("the GIDs are %s and %s, want %s", gids[0].Addr(), gids[1].Addr(), want.Addr())
	}
}
