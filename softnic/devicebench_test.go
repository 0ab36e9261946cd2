//go:build linux

package softnic_test

import (
	"testing"

	"ibverbx/softnic"
	"ibverbx/verbs"
	"ibverbx/verbs/verbstest"
)

// nullDevice has memory but skips the copies, so that only the NIC's work takes time.
type nullDevice struct{ verbstest.MemoryDevice }

func (d *nullDevice) Copy([]verbs.DeviceCopy) error  { return nil }
func (d *nullDevice) Start([]verbs.DeviceCopy) error { return nil }

// BenchmarkDeviceChain measures the NIC's cost per WRITE within a device, in a chain of 1,000.
func BenchmarkDeviceChain(b *testing.B) {
	const count, size = 1000, 64
	link := softnic.NewMemoryLink(nil)
	softnic.SetLoose(link, 0)
	r := deviceRigOn(b, open(b, link, softnic.Config{}), verbs.RC)
	d := new(nullDevice)
	null := func(n int) (*verbs.Memory, error) {
		return verbs.NewDeviceMemory(d, 0xd000_0000_0000, n, func() error { return nil })
	}
	from, to := r.register(r.pa, null), r.register(r.pb, null)
	wrs := make([]verbs.SendWR, count)
	for i := range wrs {
		wrs[i] = to.request(verbs.OpRDMAWrite, i*size, from.sge(i*size, size))
		wrs[i].Flags = 0
	}
	wrs[count-1].Flags = verbs.SendSignaled
	var wcs [1]verbs.WC
	b.ReportAllocs()
	for b.Loop() {
		if n, err := r.qa.PostSend(wrs); n != count || err != nil {
			b.Fatalf("PostSend = %d, %v, want %d and nil", n, err, count)
		}
		if n, err := r.cqa.Poll(wcs[:]); n != 1 || err != nil || wcs[0].Status != verbs.StatusSuccess {
			b.Fatalf("Poll = %d, %v, %v, want one success", n, err, wcs[0].Status)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/count, "ns/request")
}
