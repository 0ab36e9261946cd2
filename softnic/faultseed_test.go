package softnic_test

import (
	"fmt"
	"strings"
	"testing"

	"ibverbx/softnic"
	"ibverbx/verbs"
)

// TestSeedRepeats: in virtual time, the same seed and calls produce the same QP numbers, PSNs, keys and
// address handles. This holds even after closing a context with more objects than a table keeps free, so that
// all values are recycled.
func TestSeedRepeats(t *testing.T) {
	first, second := seededRun(t), seededRun(t)
	if first == second {
		return
	}
	a, b := strings.Split(first, "\n"), strings.Split(second, "\n")
	for i := range a {
		if a[i] != b[i] {
			t.Fatalf("two runs of one seed differ in line %d:\n%s\n%s", i, a[i], b[i])
		}
	}
}

// seededRun records the identifiers that a NIC allocates after its first context was closed.
func seededRun(t *testing.T) string {
	t.Helper()
	link := softnic.NewMemoryLink(&softnic.MemoryConfig{Now: func() int64 { return 0 }})
	nic, err := softnic.New(link, softnic.Config{Seed: 1})
	must(t, err)
	defer nic.Close()
	mem, err := verbs.AllocMemory(64, nil)
	must(t, err)
	t.Cleanup(func() { must(t, mem.Free()) })
	fill := func(pds, n, regions int) (ctx verbs.Context, what string) {
		var out strings.Builder
		ctx, err := nic.Open()
		must(t, err)
		for range pds {
			pd, err := ctx.AllocPD()
			must(t, err)
			objects(t, &out, ctx, pd, mem, n, regions)
		}
		return ctx, out.String()
	}
	ctx, _ := fill(4, 50, 400)
	must(t, ctx.Close())
	_, what := fill(2, 10, 10)
	return what
}

// objects creates n QPs and address handles, and regions, and records their identifiers.
func objects(t *testing.T, out *strings.Builder, ctx verbs.Context, pd verbs.PD, mem *verbs.Memory, n, regions int) {
	t.Helper()
	cq := newCQ(t, ctx, 4)
	for range n {
		q, err := pd.CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: cq, RecvCQ: cq})
		must(t, err)
		e, err := q.Endpoint()
		must(t, err)
		ah, err := pd.CreateAH(verbs.AHAttr{DGID: e.GID, SGIDIndex: 1})
		must(t, err)
		fmt.Fprintf(out, "%+v AH %d\n", e, ah.Handle())
	}
	for range regions {
		mr, err := pd.RegisterMemory(mem, verbs.AccessAll)
		must(t, err)
		fmt.Fprintf(out, "key %#x\n", mr.RKey())
	}
}

// TestReorderedPacketsAreOvertaken: packets that a fault link counts as reordered arrive out of order, even
// with jitter and a rate.
func TestReorderedPacketsAreOvertaken(t *testing.T) {
	for name, imp := range map[string]softnic.Impairment{
		"delay":         {Reorder: 0.5, Delay: 10_000},
		"jitter":        {Reorder: 0.5, Delay: 10_000, Jitter: 5_000},
		"jitter, rated": {Reorder: 0.5, Delay: 10_000, Jitter: 5_000, Rate: 1e9},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, softnic.FaultConfig{Seed: 1, Impairment: imp})
			r := newRig(t, w.link)
			_, src := memory(t, r.pa, 4*kib)
			_, dst := memory(t, r.pb, 4*kib)
			cqA := newCQ(t, r.ca, 64)
			qa, _ := r.pair(verbs.RC, cqA, newCQ(t, r.cb, 4), 64)
			postWrites(t, qa, src, dst, 50)
			w.settle(t)
			if got := len(poll(t, cqA)); got != 50 {
				t.Errorf("%d completions, want 50", got)
			}
			if w.link.Stats(r.a, r.b).Reordered == 0 || r.b.Stats().OutOfOrder == 0 {
				t.Errorf("%d packets reordered, %d out of order at the receiver: want some of each",
					w.link.Stats(r.a, r.b).Reordered, r.b.Stats().OutOfOrder)
			}
		})
	}
}
