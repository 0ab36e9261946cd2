package softnic

import (
	"errors"
	"slices"
	"testing"

	"ibverbx/verbs"
)

// TestQPTypes: a NIC supports exactly the configured QP types, and its capabilities match.
func TestQPTypes(t *testing.T) {
	caps := map[verbs.QPType]verbs.Capabilities{
		verbs.RC: verbs.CapRC, verbs.UC: verbs.CapUC | verbs.CapSRQOnUC, verbs.UD: verbs.CapUD | verbs.CapSRQOnUD,
	}
	all := []verbs.QPType{verbs.RC, verbs.UC, verbs.UD}
	for _, types := range [][]verbs.QPType{nil, {}, {verbs.UD}, {verbs.RC, verbs.UD}, all} {
		nic, err := New(NewMemoryLink(nil), Config{QPTypes: types})
		if err != nil {
			t.Fatal(err)
		}
		ctx, err := nic.Open()
		if err != nil {
			t.Fatal(err)
		}
		attr, err := ctx.QueryDevice()
		if err != nil {
			t.Fatal(err)
		}
		pd, err := ctx.AllocPD()
		if err != nil {
			t.Fatal(err)
		}
		cq, err := ctx.CreateCQ(verbs.CQConfig{Depth: 1})
		if err != nil {
			t.Fatal(err)
		}
		for _, typ := range all {
			want := types == nil || slices.Contains(types, typ)
			if got := attr.Capabilities & caps[typ]; (got == caps[typ]) != want || (got == 0) == want {
				t.Errorf("a NIC with %v has capabilities %b of %v, want %t", types, got, typ, want)
			}
			_, err := pd.CreateQP(verbs.QPConfig{Type: typ, SendCQ: cq, RecvCQ: cq, MaxSendWR: 1, MaxRecvWR: 1})
			if (err == nil) != want || (err != nil && !errors.Is(err, verbs.ErrNotSupported)) {
				t.Errorf("CreateQP of type %v on a NIC with %v = %v, want success %t or ErrNotSupported", typ, types, err, want)
			}
		}
		if err := nic.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := New(NewMemoryLink(nil), Config{QPTypes: []verbs.QPType{9}}); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("New with an unknown type = %v, want ErrInvalid", err)
	}
}
