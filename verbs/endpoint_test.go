package verbs_test

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"ibverbx/verbs"
)

func goodEndpoint() verbs.Endpoint {
	return verbs.Endpoint{
		QPN: 0x11, PSN: 0xabcdef, GID: verbs.GID{15: 1}, MTU: verbs.MTU4096, MaxRdAtomic: 16, MaxDestRdAtomic: 8, QKey: verbs.DefaultQKey,
	}
}

func TestEndpointValidate(t *testing.T) {
	tests := []struct {
		name   string
		change func(*verbs.Endpoint)
		want   string // expected in the error; empty if the endpoint is valid
	}{
		{"good", func(*verbs.Endpoint) {}, ""},
		{"largest numbers", func(e *verbs.Endpoint) { e.QPN, e.PSN = 0xffffff, 0xffffff }, ""},
		{"PSN 0", func(e *verbs.Endpoint) { e.PSN = 0 }, ""},
		{"LID instead of GID", func(e *verbs.Endpoint) { e.GID, e.LID = verbs.GID{}, 7 }, ""},
		{"largest extra", func(e *verbs.Endpoint) { e.Extra = make([]byte, verbs.MaxEndpointExtra) }, ""},
		{"no reads", func(e *verbs.Endpoint) { e.MaxRdAtomic, e.MaxDestRdAtomic = 0, 0 }, ""},

		{"zero value", func(e *verbs.Endpoint) { *e = verbs.Endpoint{} }, "QPN"},
		{"QPN 0", func(e *verbs.Endpoint) { e.QPN = 0 }, "QPN"},
		{"QPN of 25 bits", func(e *verbs.Endpoint) { e.QPN = 1 << 24 }, "QPN 0x1000000"},
		{"PSN of 25 bits", func(e *verbs.Endpoint) { e.PSN = 1 << 24 }, "PSN 0x1000000"},
		{"MTU 0", func(e *verbs.Endpoint) { e.MTU = 0 }, "MTU code 0"},
		{"MTU 6", func(e *verbs.Endpoint) { e.MTU = 6 }, "MTU code 6"},
		{"no address", func(e *verbs.Endpoint) { e.GID = verbs.GID{} }, "neither GID nor LID"},
		{"extra too long", func(e *verbs.Endpoint) { e.Extra = make([]byte, verbs.MaxEndpointExtra+1) }, "4097 bytes of Extra"},
	}
	for _, tt := range tests {
		e := goodEndpoint()
		tt.change(&e)
		err := e.Validate()
		switch {
		case tt.want == "" && err != nil:
			t.Errorf("%s: Validate = %v, want nil", tt.name, err)
		case tt.want != "" && (err == nil || !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(), tt.want)):
			t.Errorf("%s: Validate = %v, want an error about %s", tt.name, err, tt.want)
		}
	}
}

func TestConnectAttr(t *testing.T) {
	local := goodEndpoint()
	remote := verbs.Endpoint{
		QPN: 0x22, PSN: 5, LID: 9, GID: verbs.GID{15: 2}, MTU: verbs.MTU1024, MaxRdAtomic: 4, MaxDestRdAtomic: 12, QKey: 99,
	}
	want := verbs.QPAttr{
		PathMTU: verbs.MTU1024,
		QKey:    verbs.DefaultQKey,
		RQPSN:   5,
		SQPSN:   0xabcdef,
		DestQPN: 0x22,
		Access:  verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic,
		AH:      verbs.AHAttr{DGID: remote.GID, SGIDIndex: 3, HopLimit: 64, DLID: 9, Port: 2},
		Port:    2,
		// Neither side issues more than the other serves.
		MaxRdAtomic:     12,
		MaxDestRdAtomic: 4,
		MinRNRTimer:     12,
		Timeout:         14,
		RetryCount:      6,
		RNRRetry:        7,
	}
	if got := verbs.ConnectAttr(local, remote, 2, 3); !reflect.DeepEqual(got, want) {
		t.Errorf("ConnectAttr =\n%+v, want\n%+v", got, want)
	}
	back := verbs.ConnectAttr(remote, local, 1, 0)
	if back.PathMTU != want.PathMTU || back.MaxRdAtomic != want.MaxDestRdAtomic || back.MaxDestRdAtomic != want.MaxRdAtomic {
		t.Errorf("the two ends do not fit: %+v and %+v", want, back)
	}
}

// modifyQP is a QP that implements only the state machine.
type modifyQP struct {
	verbs.QP
	typ    verbs.QPType
	state  verbs.QPState
	failAt verbs.QPState
	attr   verbs.QPAttr // as of the last Modify
	path   []verbs.QPState
	masks  verbs.QPAttrMask // of all calls
}

func (q *modifyQP) Type() verbs.QPType   { return q.typ }
func (q *modifyQP) State() verbs.QPState { return q.state }

func (q *modifyQP) Modify(attr verbs.QPAttr, mask verbs.QPAttrMask) error {
	if attr.State == q.failAt && q.failAt != verbs.StateReset {
		return verbs.ErrDeviceFatal
	}
	if mask&verbs.AttrState == 0 {
		return verbs.Invalidf("no state")
	}
	if err := verbs.CheckTransition(q.typ, q.state, attr.State, mask); err != nil {
		return err
	}
	q.state, q.attr = attr.State, attr
	q.path = append(q.path, attr.State)
	q.masks |= mask
	return nil
}

func TestConnectWith(t *testing.T) {
	attr := verbs.ConnectAttr(goodEndpoint(), goodEndpoint(), 1, 0)
	for _, qpt := range []verbs.QPType{verbs.RC, verbs.UC, verbs.UD} {
		for _, from := range []verbs.QPState{verbs.StateReset, verbs.StateInit} {
			qp := &modifyQP{typ: qpt, state: from}
			if err := verbs.ConnectWith(qp, attr); err != nil {
				t.Errorf("%v from %v: %v", qpt, from, err)
			}
			if qp.state != verbs.StateRTS || len(qp.path) != int(verbs.StateRTS-from) {
				t.Errorf("%v from %v: went %v", qpt, from, qp.path)
			}
		}
		for _, from := range []verbs.QPState{verbs.StateRTS, verbs.StateErr} {
			qp := &modifyQP{typ: qpt, state: from}
			if err := verbs.ConnectWith(qp, attr); err == nil || qp.state != from {
				t.Errorf("%v from %v: error %v, now in %v", qpt, from, err, qp.state)
			}
		}
		qp := &modifyQP{typ: qpt, failAt: verbs.StateRTR}
		if err := verbs.ConnectWith(qp, attr); !errors.Is(err, verbs.ErrDeviceFatal) || qp.state != verbs.StateInit {
			t.Errorf("%v refused RTR: error %v, state %v; want %v in INIT", qpt, err, qp.state, verbs.ErrDeviceFatal)
		}
	}
	attr.DestQPN = 0
	if err := verbs.ConnectWith(&modifyQP{typ: verbs.RC}, attr); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("RC to QPN 0: %v, want %v", err, verbs.ErrInvalid)
	}
	if err := verbs.ConnectWith(&modifyQP{typ: verbs.UD}, attr); err != nil {
		t.Errorf("UD to QPN 0: %v", err)
	}
}

func TestInitQP(t *testing.T) {
	for _, qpt := range []verbs.QPType{verbs.RC, verbs.UC, verbs.UD} {
		for port, want := range map[uint8]uint8{0: 1, 1: 1, 2: 2} {
			qp := &modifyQP{typ: qpt}
			if err := verbs.InitQP(qp, port); err != nil || qp.state != verbs.StateInit || qp.attr.Port != want {
				t.Errorf("%v on port %d: %v, state %v, port %d", qpt, port, err, qp.state, qp.attr.Port)
			}
		}
	}
}
