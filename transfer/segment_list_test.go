package transfer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"ibverbx/node"
)

// TestSegments: a peer's segments are listed by name, in several responses, without local and denied ones. A segment that replaces another one
// has a higher generation.
func TestSegments(t *testing.T) {
	n := memoryNetwork(1)
	p := newPair(t, n, 4096)
	const many = 2*maxListed + 3
	want := []SegmentInfo{{Name: "target", Size: 4096, Access: Read | Write}}
	for i := range many {
		name := fmt.Sprintf("s%04d", i)
		access := []Access{Read, Write, 0}[i%3]
		_, err := p.there.Alloc(name, int64(i+1), SegmentConfig{DefaultAccess: access})
		wantOK(t, "Alloc", err)
		if access != 0 {
			want = append(want, SegmentInfo{Name: name, Size: int64(i + 1), Access: access})
		}
	}
	_, err := p.there.Alloc("local", 8, SegmentConfig{Local: true, DefaultAccess: Read})
	wantOK(t, "Alloc", err)
	slices.SortFunc(want, func(a, b SegmentInfo) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	got, err := p.peer.Segments(soon(t))
	wantOK(t, "Segments", err)
	generations := map[uint64]bool{}
	for i := range got {
		generations[got[i].Generation] = true
		got[i].Generation = 0
	}
	if !slices.Equal(got, want) {
		t.Errorf("Segments: got %d, %+v, want %d, %+v", len(got), got, len(want), want)
	}
	if len(generations) != len(want) {
		t.Errorf("%d segments have %d generations, want all different", len(want), len(generations))
	}
	newest := uint64(0)
	for g := range generations {
		newest = max(newest, g)
	}
	wantOK(t, "Close", p.target.Close(soon(t)))
	_, err = p.there.Alloc("target", 10, SegmentConfig{DefaultAccess: Read})
	wantOK(t, "Alloc", err)
	got, err = p.peer.Segments(soon(t))
	wantOK(t, "Segments", err)
	if last := got[len(got)-1]; last.Name != "target" || last.Size != 10 || last.Access != Read || last.Generation <= newest {
		t.Errorf("the last segment is %+v, want the new target with a generation above %d", last, newest)
	}
	if _, err := (&Peer{}).Segments(soon(t)); !errors.Is(err, ErrClosed) {
		t.Errorf("Segments of a zero Peer: got %v, want %v", err, ErrClosed)
	}
}

// TestSegmentsAuthorized: Config.Authorize decides for each segment, even if it grants only the requested access.
func TestSegmentsAuthorized(t *testing.T) {
	n := memoryNetwork(1)
	allow := map[string]Access{"r": Read, "w": Write, "rw": Read | Write}
	there := n.start(t, hostConfig{name: "there", engine: Config{Authorize: func(_ context.Context, _ *node.Peer, name string, want Access) (Access, error) {
		if name == "bad" {
			return Read, errors.New("refused")
		}
		return allow[name] & want, nil
	}}})
	here := n.start(t, hostConfig{name: "here"})
	for _, name := range []string{"r", "w", "rw", "none", "bad"} {
		_, err := there.Alloc(name, 1, SegmentConfig{DefaultAccess: Read | Write})
		wantOK(t, "Alloc", err)
	}
	got, err := here.to(there).Segments(soon(t))
	wantOK(t, "Segments", err)
	var names []string
	for _, s := range got {
		names = append(names, fmt.Sprint(s.Name, " ", s.Access))
	}
	if want := []string{"r read", "rw read", "w write"}; !slices.Equal(names, want) {
		t.Errorf("Segments: got %q, want %q", names, want)
	}
}
