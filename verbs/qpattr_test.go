package verbs_test

import (
	"reflect"
	"testing"

	"ibverbx/verbs"
)

// Each attribute has its own mask bit, and Set copies only the attributes in the mask.
func TestQPAttrSet(t *testing.T) {
	full := verbs.QPAttr{
		PathMTU: 1, QKey: 2, RQPSN: 3, SQPSN: 4, DestQPN: 5, Access: 6, AH: verbs.AHAttr{DLID: 7}, PKeyIndex: 8, Port: 9,
		MaxRdAtomic: 10, MaxDestRdAtomic: 11, MinRNRTimer: 12, Timeout: 13, RetryCount: 14, RNRRetry: 15, SQDNotify: true,
	}
	var all, each verbs.QPAttr
	all.Set(&full, ^verbs.QPAttrMask(0))
	if all != full {
		t.Errorf("Set with every bit: got %+v, want %+v", all, full)
	}
	for bit := verbs.QPAttrMask(1); bit != 0; bit <<= 1 {
		var one verbs.QPAttr
		one.Set(&full, bit)
		n := 0
		for _, f := range reflect.ValueOf(one).Fields() {
			if !f.IsZero() {
				n++
			}
		}
		if n > 1 {
			t.Errorf("Set with %v: %d attributes changed, want at most 1", bit, n)
		}
		each.Set(&full, bit)
	}
	if each != full {
		t.Errorf("Set with one bit after the other: got %+v, want %+v", each, full)
	}
}
