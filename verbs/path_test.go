package verbs_test

import (
	"errors"
	"strings"
	"testing"

	"ibverbx/verbs"
)

// TestPathApply: a zero field keeps the default, ExplicitZero sets 0, and other values are set.
func TestPathApply(t *testing.T) {
	base := verbs.ConnectAttr(goodEndpoint(), goodEndpoint(), 1, 0)
	got := base
	(&verbs.PathConfig{}).Apply(&got)
	if got != base {
		t.Errorf("a zero path makes %+v, want %+v", got, base)
	}
	want := base
	want.AH.TrafficClass, want.AH.SL, want.AH.HopLimit, want.PKeyIndex = 104, 3, 9, 2
	want.Timeout, want.RetryCount, want.RNRRetry, want.MinRNRTimer = 0, 5, 0, 31
	(&verbs.PathConfig{
		TrafficClass: 104, SL: 3, HopLimit: 9, PKeyIndex: 2, AckTimeout: verbs.ExplicitZero, RetryCount: 5, RNRRetry: verbs.ExplicitZero, MinRNRTimer: 31,
	}).Apply(&got)
	if got != want {
		t.Errorf("the path makes %+v, want %+v", got, want)
	}
}

// TestPathCheck: an error names the field and its range, which depends on the port's tables.
func TestPathCheck(t *testing.T) {
	port := &verbs.PortAttr{GIDs: 4, PKeys: 2}
	for _, tt := range []struct {
		path verbs.PathConfig
		gid  verbs.GID
		want string
	}{
		{path: verbs.PathConfig{SL: 16}, want: "Path.SL is 16: want 0 to 15"},
		{path: verbs.PathConfig{PKeyIndex: 2}, want: "Path.PKeyIndex is 2: want 0 to 1"},
		{path: verbs.PathConfig{GIDIndex: 4}, want: "Path.GIDIndex is 4: want -1 to 3"},
		{path: verbs.PathConfig{RetryCount: 8}, want: "Path.RetryCount is 8: want -1 to 7"},
		{path: verbs.PathConfig{GIDIndex: 3}, gid: verbs.GID{1}, want: "set one of them"},
	} {
		if _, err := tt.path.Check(port, tt.gid); !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("Check(%+v) = %v, want %q", tt.path, err, tt.want)
		}
	}
	for index, want := range map[int]int{0: -1, verbs.ExplicitZero: 0, 3: 3} {
		p := verbs.PathConfig{GIDIndex: index, PKeyIndex: 1}
		if row, err := p.Check(port, verbs.GID{}); row != want || err != nil {
			t.Errorf("Check with GIDIndex %d = %d, %v, want row %d", index, row, err, want)
		}
	}
}

// gidTable is a Context whose port has the given GIDs.
type gidTable struct {
	verbs.Context
	rows []verbs.GIDEntry
}

func (g gidTable) QueryPort(int) (verbs.PortAttr, error) {
	return verbs.PortAttr{GIDs: len(g.rows)}, nil
}
func (g gidTable) QueryGID(_, i int) (verbs.GIDEntry, error) { return g.rows[i], nil }

// TestPathSGIDIndex: of two rows with the same GID, the RoCE v2 row is selected, unless the path
// names one.
func TestPathSGIDIndex(t *testing.T) {
	gid := verbs.GID{15: 1}
	ctx := gidTable{rows: []verbs.GIDEntry{
		{GID: verbs.GID{15: 9}, Index: 0}, {GID: gid, Index: 1, Type: verbs.GIDTypeRoCEv1}, {GID: gid, Index: 2, Type: verbs.GIDTypeRoCEv2},
	}}
	for index, want := range map[int]int{0: 2, 1: 1, verbs.ExplicitZero: 0} {
		p := verbs.PathConfig{GIDIndex: index}
		if row, err := p.SGIDIndex(ctx, 1, gid); row != want || err != nil {
			t.Errorf("SGIDIndex with GIDIndex %d = %d, %v, want %d", index, row, err, want)
		}
	}
}

// TestConnectSetsPKeyIndex: the attributes' P_Key index takes effect even if the QP is already in
// INIT.
func TestConnectSetsPKeyIndex(t *testing.T) {
	attr := verbs.ConnectAttr(goodEndpoint(), goodEndpoint(), 1, 0)
	attr.PKeyIndex = 5
	for _, qpt := range []verbs.QPType{verbs.RC, verbs.UC, verbs.UD} {
		qp := &modifyQP{typ: qpt, state: verbs.StateInit}
		if err := verbs.ConnectWith(qp, attr); err != nil || qp.masks&verbs.AttrPKeyIndex == 0 {
			t.Errorf("%v: ConnectWith = %v with attributes %v, want PKEY_INDEX among them", qpt, err, qp.masks)
		}
	}
}
