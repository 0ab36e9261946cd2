package verbs_test

import (
	"slices"
	"testing"

	"ibverbx/verbs"
)

// TestCutSGE compares every part of a list, including empty elements, with a byte-by-byte copy.
func TestCutSGE(t *testing.T) {
	list := []verbs.SGE{{Addr: 100, Length: 3, LKey: 1}, {Addr: 200, LKey: 2}, {Addr: 300, Length: 1, LKey: 3}, {Addr: 400, Length: 4, LKey: 4}}
	type place struct {
		addr uint64
		key  uint32
	}
	places := func(list []verbs.SGE) (all []place) {
		for _, g := range list {
			for i := range g.Length {
				all = append(all, place{g.Addr + uint64(i), g.LKey})
			}
		}
		return all
	}
	all := places(list)
	for off := range len(all) + 2 {
		for n := range len(all) + 2 {
			dst := make([]verbs.SGE, len(list))
			dst = dst[:verbs.CutSGE(dst, list, uint32(off), uint32(n))]
			want := all[min(off, len(all)):min(off+n, len(all))]
			if got := places(dst); !slices.Equal(got, want) {
				t.Errorf("%d bytes at %d = %v, want %v", n, off, got, want)
			}
			if i := slices.IndexFunc(dst, func(g verbs.SGE) bool { return g.Length == 0 }); i >= 0 {
				t.Errorf("%d bytes at %d: element %d is empty", n, off, i)
			}
			same := slices.Clone(list)
			if same = same[:verbs.CutSGE(same, same, uint32(off), uint32(n))]; !slices.Equal(same, dst) {
				t.Errorf("%d bytes at %d in place = %v, want %v", n, off, same, dst)
			}
		}
	}
}

func TestCutSGEAllocs(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	var wr verbs.SendWR
	wr.SetSGE(verbs.SGE{Length: 8}, verbs.SGE{Length: 8})
	if n := testing.AllocsPerRun(100, func() { verbs.CutSGE(wr.SGE[:], wr.SGE[:wr.NumSGE], 4, 8) }); n != 0 {
		t.Errorf("CutSGE allocates %v times", n)
	}
}
