package reliable_test

import (
	"testing"

	"ibverbx/reliable"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// sameKeysMR is a region whose keys are those of all others, as when a device reuses a closed region's key.
type sameKeysMR struct{ verbs.MR }

func (sameKeysMR) LKey() uint32 { return 7 }
func (sameKeysMR) RKey() uint32 { return 7 }

// TestRegionClosedTwice closes a region again after its key was reused. The new region must still be known: a
// SEND into it arrives.
func TestRegionClosedTwice(t *testing.T) {
	link := softnic.NewMemoryLink(nil)
	same := &interposer{mr: func(pd verbs.PD, m *verbs.Memory, access verbs.Access) (verbs.MR, error) {
		mr, err := pd.RegisterMemory(m, access)
		if err != nil || access&verbs.AccessRemoteRead == 0 { // one of the wrapper's own
			return mr, err
		}
		return sameKeysMR{mr}, nil
	}}
	a := newSide(t, link, reliable.Config{Paths: 2}, 4096)
	b := newSideOver(t, link, reliable.Config{Paths: 2}, 4096, same.over)
	connect(t, a, b)
	old := b.mr
	must(t, old.Close())
	var err error
	b.mr, err = b.pd.RegisterMemory(b.mem, verbs.AccessAll)
	must(t, err)
	must(t, old.Close())
	b.recv(t, 1, 0, 100)
	a.post(t, a.send(0, 100))
	if wc := b.wait(t, 1)[0]; wc.Err() != nil {
		t.Fatalf("the receive ended with %v, want success", wc.Err())
	}
}
