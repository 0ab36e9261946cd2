package verbstest

import (
	"errors"
	"slices"

	"ibverbx/verbs"
)

var stateTests = []test{
	{"NewIsReset", stateNewIsReset},
	{"Legal", stateLegal},
	{"Illegal", stateIllegal},
	{"MissingAttributes", stateMissing},
	{"UnexpectedAttributes", stateUnexpected},
	{"BadValues", stateBadValues},
	{"ModifyInPlace", stateModifyInPlace},
	{"PostInReset", statePostInReset},
	{"PostSendBeforeRTS", statePostSendBeforeRTS},
	{"PostRecvInInit", statePostRecvInInit},
	{"ReceiveInRTR", stateReceiveInRTR},
	{"ErrResetReuse", stateErrResetReuse},
}

// legal is the table of IBTA 1.4 section 10.3.1, as in ibv_modify_qp(3) and the Linux kernel. Only
// errors enter SQE (families uc and ud).
var legal = map[verbs.QPState][]verbs.QPState{
	verbs.StateReset: {verbs.StateReset, verbs.StateInit},
	verbs.StateInit:  {verbs.StateReset, verbs.StateErr, verbs.StateInit, verbs.StateRTR},
	verbs.StateRTR:   {verbs.StateReset, verbs.StateErr, verbs.StateRTS},
	verbs.StateRTS:   {verbs.StateReset, verbs.StateErr, verbs.StateRTS, verbs.StateSQD},
	verbs.StateSQD:   {verbs.StateReset, verbs.StateErr, verbs.StateRTS, verbs.StateSQD},
	verbs.StateErr:   {verbs.StateReset, verbs.StateErr},
}

// needed returns the attributes required by a transition (ibv_modify_qp(3)).
func needed(t verbs.QPType, from, to verbs.QPState) verbs.QPAttrMask {
	const connected = verbs.AttrAV | verbs.AttrPathMTU | verbs.AttrDestQPN | verbs.AttrRQPSN
	switch {
	case from == verbs.StateReset && to == verbs.StateInit && t == verbs.UD:
		return verbs.AttrPKeyIndex | verbs.AttrPort | verbs.AttrQKey
	case from == verbs.StateReset && to == verbs.StateInit:
		return verbs.AttrPKeyIndex | verbs.AttrPort | verbs.AttrAccess
	case to == verbs.StateRTR && t == verbs.UC:
		return connected
	case to == verbs.StateRTR && t == verbs.RC:
		return connected | verbs.AttrMaxDestRdAtomic | verbs.AttrMinRNRTimer
	case from == verbs.StateRTR && to == verbs.StateRTS && t == verbs.RC:
		return verbs.AttrSQPSN | verbs.AttrTimeout | verbs.AttrRetryCount | verbs.AttrRNRRetry | verbs.AttrMaxRdAtomic
	case from == verbs.StateRTR && to == verbs.StateRTS:
		return verbs.AttrSQPSN
	}
	return 0
}

// modify requests a state transition with exactly the required attributes.
func modify(q *end, attr verbs.QPAttr, from, to verbs.QPState) error {
	attr.State = to
	return q.Modify(attr, verbs.AttrState|needed(q.Type(), from, to))
}

// drive moves q from RESET to a state.
func (e *env) drive(q *end, attr verbs.QPAttr, to verbs.QPState) {
	e.Helper()
	path := []verbs.QPState{verbs.StateReset, verbs.StateInit, verbs.StateRTR, verbs.StateRTS, verbs.StateSQD}
	if to == verbs.StateErr {
		path = []verbs.QPState{verbs.StateReset, verbs.StateInit, verbs.StateErr}
	}
	for i := 1; i < len(path) && q.State() != to; i++ {
		e.must(modify(q, attr, path[i-1], path[i]), "Modify from %v to %v", path[i-1], path[i])
	}
	if q.State() != to {
		e.Fatalf("state = %v, want %v", q.State(), to)
	}
}

// types runs a part for each transport that the devices support, with a peer to connect to and its
// attributes.
func (e *env) types(run func(e *env, fresh func() *end, attr verbs.QPAttr)) {
	e.Helper()
	for _, t := range []verbs.QPType{verbs.RC, verbs.UC, verbs.UD} {
		e.sub(t.String(), func(e *env) {
			switch t {
			case verbs.UC:
				e.needUC()
			case verbs.UD:
				e.needUD()
			case verbs.RC:
			}
			cq := e.newCQ(e.a, 16, nil)
			cfg := verbs.QPConfig{Type: t, SendCQ: cq, RecvCQ: cq, MaxSendWR: 2, MaxRecvWR: 2}
			peer := e.newQP(e.b, verbs.QPConfig{Type: t, MaxSendWR: 2, MaxRecvWR: 2})
			attr := e.connectAttr(e.newQP(e.a, cfg), e.endpoint(peer))
			run(e, func() *end { e.Helper(); return e.newQP(e.a, cfg) }, attr)
		})
	}
}

// states returns the QP states reachable on this device.
func (e *env) states() []verbs.QPState {
	s := []verbs.QPState{verbs.StateReset, verbs.StateInit, verbs.StateRTR, verbs.StateRTS, verbs.StateErr}
	if e.a.attr.Capabilities&verbs.CapSQD != 0 {
		s = append(s, verbs.StateSQD)
	}
	return s
}

// A new QP is in RESET, and its number is a nonzero 24-bit value.
func stateNewIsReset(e *env) {
	e.types(func(e *env, fresh func() *end, _ verbs.QPAttr) {
		q := fresh()
		attr := e.query(q)
		if q.State() != verbs.StateReset || attr.State != verbs.StateReset {
			e.Errorf("state of a new QP = %v, by Query %v, want RESET", q.State(), attr.State)
		}
		if q.Num() == 0 || q.Num() >= 1<<24 {
			e.Errorf("number of a new QP = %#x, want 24 bits and not 0", q.Num())
		}
	})
}

// Every legal transition works with exactly its required attributes.
func stateLegal(e *env) {
	e.types(func(e *env, fresh func() *end, attr verbs.QPAttr) {
		for _, from := range e.states() {
			for _, to := range legal[from] {
				if !slices.Contains(e.states(), to) {
					continue
				}
				q := fresh()
				e.drive(q, attr, from)
				if err := modify(q, attr, from, to); err != nil {
					e.Errorf("Modify from %v to %v: %v", from, to, err)
					continue
				}
				e.inState(q, to)
			}
		}
	})
}

// Every other transition fails with a *TransitionError that names both states, and leaves the QP
// unchanged.
func stateIllegal(e *env) {
	e.types(func(e *env, fresh func() *end, attr verbs.QPAttr) {
		for _, from := range e.states() {
			q := fresh()
			e.drive(q, attr, from)
			for to := verbs.StateReset; to <= verbs.StateErr; to++ {
				if slices.Contains(legal[from], to) {
					continue
				}
				te := e.refusedChange(q, from, to, attr, verbs.AttrState)
				if te != nil && !errors.Is(te, verbs.ErrState) {
					e.Errorf("Modify from %v to %v = %v, want an error that wraps ErrState", from, to, te)
				}
			}
			if te := e.refusedChange(q, from, 99, attr, verbs.AttrState); te == nil {
				e.Errorf("Modify from %v to state 99 was not refused", from)
			}
		}
	})
}

// refusedChange requests a transition that must be rejected without an effect.
func (e *env) refusedChange(q *end, from, to verbs.QPState, attr verbs.QPAttr, mask verbs.QPAttrMask) *verbs.TransitionError {
	e.Helper()
	before := e.query(q)
	attr.State = to
	err := q.Modify(attr, mask)
	var te *verbs.TransitionError
	if !errors.As(err, &te) {
		e.Errorf("Modify of %v from %v to %v with %v = %v, want a *TransitionError", q.Type(), from, to, mask, err)
	} else if te.From != from || te.To != to || te.Type != q.Type() {
		e.Errorf("Modify of %v from %v to %v: the error names %v from %v to %v", q.Type(), from, to, te.Type, te.From, te.To)
	}
	after := e.query(q)
	if before != after || q.State() != from {
		e.Errorf("a refused Modify from %v to %v changed the QP from %+v to %+v", from, to, before, after)
	}
	return te
}

// steps lists the transitions that require attributes.
var steps = [][2]verbs.QPState{
	{verbs.StateReset, verbs.StateInit}, {verbs.StateInit, verbs.StateRTR}, {verbs.StateRTR, verbs.StateRTS},
}

// A transition with a missing attribute returns an error that names it, and leaves the QP
// unchanged.
func stateMissing(e *env) {
	e.types(func(e *env, fresh func() *end, attr verbs.QPAttr) {
		for _, s := range steps {
			q := fresh()
			e.drive(q, attr, s[0])
			all := needed(q.Type(), s[0], s[1])
			for bit := verbs.QPAttrMask(1); bit != 0; bit <<= 1 {
				if all&bit == 0 {
					continue
				}
				te := e.refusedChange(q, s[0], s[1], attr, verbs.AttrState|all&^bit)
				if te != nil && (te.Missing != bit || te.Unexpected != 0 || !errors.Is(te, verbs.ErrInvalid)) {
					e.Errorf("Modify from %v to %v without %v = %v", s[0], s[1], bit, te)
				}
			}
		}
	})
}

// A transition with an unexpected attribute returns an error that names it, and leaves the QP
// unchanged.
func stateUnexpected(e *env) {
	e.types(func(e *env, fresh func() *end, attr verbs.QPAttr) {
		for i, extra := range []verbs.QPAttrMask{verbs.AttrSQPSN, verbs.AttrSQPSN, verbs.AttrRQPSN} {
			from, to := steps[i][0], steps[i][1]
			q := fresh()
			e.drive(q, attr, from)
			te := e.refusedChange(q, from, to, attr, verbs.AttrState|extra|needed(q.Type(), from, to))
			if te != nil && (te.Unexpected != extra || te.Missing != 0 || !errors.Is(te, verbs.ErrInvalid)) {
				e.Errorf("Modify from %v to %v with %v = %v", from, to, extra, te)
			}
		}
	})
}

// Invalid values are refused without an effect.
func stateBadValues(e *env) {
	peer := e.endpoint(e.newQP(e.b, verbs.QPConfig{Type: verbs.RC, MaxSendWR: 2, MaxRecvWR: 2}))
	type badValue struct {
		name   string
		from   verbs.QPState
		change func(a *verbs.QPAttr)
	}
	cases := []badValue{
		{"Port", verbs.StateReset, func(a *verbs.QPAttr) { a.Port = 200 }},
		{"PathMTU", verbs.StateInit, func(a *verbs.QPAttr) { a.PathMTU = 9 }},
		{"Timeout", verbs.StateRTR, func(a *verbs.QPAttr) { a.Timeout = 32 }},
	}
	if n := e.a.attr.MaxQPRdAtomic; n < 255 {
		cases = append(cases, badValue{"MaxDestRdAtomic", verbs.StateInit, func(a *verbs.QPAttr) { a.MaxDestRdAtomic = uint8(n + 1) }})
	}
	if n := e.a.attr.MaxQPInitRdAtomic; n < 255 {
		cases = append(cases, badValue{"MaxRdAtomic", verbs.StateRTR, func(a *verbs.QPAttr) { a.MaxRdAtomic = uint8(n + 1) }})
	}
	for _, tt := range cases {
		e.sub(tt.name, func(e *env) {
			q := e.newQP(e.a, verbs.QPConfig{Type: verbs.RC, MaxSendWR: 2, MaxRecvWR: 2})
			attr := e.connectAttr(q, peer)
			e.drive(q, attr, tt.from)
			before := e.query(q)
			bad := attr
			tt.change(&bad)
			e.refused("Modify with a bad "+tt.name, modify(q, bad, tt.from, tt.from+1), verbs.ErrInvalid, verbs.ErrLimit, verbs.ErrNotFound)
			after := e.query(q)
			if before != after {
				e.Errorf("a refused Modify changed the QP from %+v to %+v", before, after)
			}
			e.must(modify(q, attr, tt.from, tt.from+1), "Modify with good values afterwards")
		})
	}
}
