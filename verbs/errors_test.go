package verbs_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"ibverbx/verbs"
)

func TestOpError(t *testing.T) {
	tests := []struct {
		err  *verbs.OpError
		want string
	}{
		{&verbs.OpError{Op: "allocate memory", Err: verbs.ErrLimit}, "allocate memory: limit reached"},
		{&verbs.OpError{Op: "open", Device: "soft0", Err: verbs.ErrDeviceFatal}, "open on soft0: device failed"},
		{&verbs.OpError{Op: "post send", Device: "soft0", QPN: 0x12345, Err: verbs.ErrState}, "post send on soft0 (QP 0x012345): wrong QP state"},
	}
	for _, tt := range tests {
		if got := tt.err.Error(); got != tt.want {
			t.Errorf("Error() = %q, want %q", got, tt.want)
		}
	}
}

func TestNewOpError(t *testing.T) {
	if err := verbs.NewOpError("close", "soft0", 1, nil); err != nil {
		t.Errorf("NewOpError of nil = %v, want nil", err)
	}
	err := verbs.NewOpError("modify QP", "soft0", 1, fmt.Errorf("inner: %w", verbs.ErrBusy))
	var op *verbs.OpError
	if !errors.Is(err, verbs.ErrBusy) || !errors.As(err, &op) || op.Op != "modify QP" || op.Device != "soft0" || op.QPN != 1 {
		t.Errorf("NewOpError = %#v", err)
	}
}

// The sentinels are distinct, and errors.Is finds each one when it is wrapped.
func TestSentinels(t *testing.T) {
	all := []error{
		verbs.ErrClosed, verbs.ErrQueueFull, verbs.ErrBusy, verbs.ErrInvalid, verbs.ErrState, verbs.ErrLimit,
		verbs.ErrNotSupported, verbs.ErrNotFound, verbs.ErrCQOverrun, verbs.ErrDeviceFatal,
	}
	for i, a := range all {
		wrapped := verbs.NewOpError("op", "", 0, a)
		for j, b := range all {
			if got := errors.Is(wrapped, b); got != (i == j) {
				t.Errorf("errors.Is(%v, %v) = %v", wrapped, b, got)
			}
		}
	}
}

func TestInvalidf(t *testing.T) {
	cause := errors.New("cause")
	err := verbs.Invalidf("depth %d: %w", -1, cause)
	if !errors.Is(err, verbs.ErrInvalid) || !errors.Is(err, cause) {
		t.Errorf("Invalidf = %v does not wrap both", err)
	}
	if got, want := err.Error(), "invalid argument: depth -1: cause"; got != want {
		t.Errorf("Invalidf = %q, want %q", got, want)
	}
}

func TestWCErr(t *testing.T) {
	ok := verbs.WC{WRID: 7, Status: verbs.StatusSuccess, QPN: 3, VendorErr: 9}
	if err := ok.Err(); err != nil {
		t.Errorf("Err of a successful completion = %v", err)
	}
	for s := verbs.StatusLocLenErr; s <= verbs.StatusTMRndvIncomplete; s++ {
		// Err must ignore the fields that are invalid after a failure.
		wc := verbs.WC{WRID: 0xffffffffffffffff, Status: s, Opcode: 0xee, Flags: 0xee, VendorErr: 0x81, ByteLen: 0xeeee, Imm: 0xeeee, QPN: 0xabcdef}
		err := wc.Err()
		var we *verbs.WCError
		if !errors.As(err, &we) {
			t.Fatalf("Err of status %d = %v", s, err)
		}
		if want := (verbs.WCError{Status: s, VendorErr: 0x81, QPN: 0xabcdef, WRID: 0xffffffffffffffff}); *we != want {
			t.Errorf("Err of status %d = %+v, want %+v", s, *we, want)
		}
		want := fmt.Sprintf("completion of wr_id 18446744073709551615 on QP 0xabcdef: %s (status %d, vendor error 0x81)", wcStatusStr[s], s)
		if got := err.Error(); !strings.HasPrefix(got, want) || !strings.HasSuffix(got, s.Cause()) {
			t.Errorf("Error() = %q, want %q and the cause", got, want)
		}
	}
}

func TestWCErrAllocs(t *testing.T) {
	wc := verbs.WC{Status: verbs.StatusSuccess}
	if n := testing.AllocsPerRun(100, func() { _ = wc.Err() }); n != 0 {
		t.Errorf("Err of a successful completion allocates %v times", n)
	}
}

func TestEventString(t *testing.T) {
	tests := []struct {
		e    verbs.Event
		want string
	}{
		{verbs.Event{Type: verbs.EventCQErr}, "CQ error"},
		{verbs.Event{Type: verbs.EventPortErr, Port: 2}, "port error (port 2)"},
		{verbs.Event{Type: verbs.EventQPFatal, QP: numberedQP{num: 0x123456}}, "local work queue catastrophic error (QP 0x123456)"},
	}
	for _, tt := range tests {
		if got := tt.e.String(); got != tt.want {
			t.Errorf("String() = %q, want %q", got, tt.want)
		}
	}
}

type numberedQP struct {
	verbs.QP
	num uint32
}

func (q numberedQP) Num() uint32 { return q.num }
