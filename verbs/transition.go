package verbs

import (
	"fmt"
	"strings"
)

// transition lists the required and the optional attributes of a state transition, per
// transport. The table follows ibv_modify_qp(3) and IBTA 1.4 section 11.2.5.2,
// without alternate paths. RESET enters ERR through INIT, as in the Linux kernel.
type transition struct {
	must, may map[QPType]QPAttrMask
}

const (
	initConnected = AttrPKeyIndex | AttrPort | AttrAccess
	initDatagram  = AttrPKeyIndex | AttrPort | AttrQKey
	rtrUC         = AttrAV | AttrPathMTU | AttrDestQPN | AttrRQPSN
	rtrRC         = rtrUC | AttrMaxDestRdAtomic | AttrMinRNRTimer
	rtsRC         = AttrTimeout | AttrRetryCount | AttrRNRRetry | AttrSQPSN | AttrMaxRdAtomic
	sqdRC         = AttrPort | AttrAV | AttrTimeout | AttrRetryCount | AttrRNRRetry | AttrMaxRdAtomic |
		AttrMaxDestRdAtomic | AttrAccess | AttrPKeyIndex | AttrMinRNRTimer
)

func perType(rc, uc, ud QPAttrMask) map[QPType]QPAttrMask {
	return map[QPType]QPAttrMask{RC: rc, UC: uc, UD: ud}
}

var transitions = map[[2]QPState]transition{
	{StateReset, StateReset}: {},
	{StateReset, StateInit}:  {must: perType(initConnected, initConnected, initDatagram)},
	{StateInit, StateReset}:  {},
	{StateInit, StateErr}:    {},
	{StateInit, StateInit}:   {may: perType(initConnected, initConnected, initDatagram)},
	{StateInit, StateRTR}: {
		must: perType(rtrRC, rtrUC, 0),
		may:  perType(AttrAccess|AttrPKeyIndex, AttrAccess|AttrPKeyIndex, AttrPKeyIndex|AttrQKey),
	},
	{StateRTR, StateReset}: {},
	{StateRTR, StateErr}:   {},
	{StateRTR, StateRTS}: {
		must: perType(rtsRC, AttrSQPSN, AttrSQPSN),
		may:  perType(AttrCurState|AttrAccess|AttrMinRNRTimer, AttrCurState|AttrAccess, AttrCurState|AttrQKey),
	},
	{StateRTS, StateReset}: {},
	{StateRTS, StateErr}:   {},
	{StateRTS, StateRTS}: {
		may: perType(AttrCurState|AttrAccess|AttrMinRNRTimer, AttrCurState|AttrAccess, AttrCurState|AttrQKey),
	},
	{StateRTS, StateSQD}:   {may: perType(AttrSQDNotify, AttrSQDNotify, AttrSQDNotify)},
	{StateSQD, StateReset}: {},
	{StateSQD, StateErr}:   {},
	{StateSQD, StateRTS}: {
		may: perType(AttrCurState|AttrAccess|AttrMinRNRTimer, AttrCurState|AttrAccess, AttrCurState|AttrQKey),
	},
	{StateSQD, StateSQD}: {
		may: perType(sqdRC, AttrAV|AttrAccess|AttrPKeyIndex, AttrPKeyIndex|AttrQKey),
	},
	{StateSQE, StateReset}: {},
	{StateSQE, StateErr}:   {},
	{StateSQE, StateRTS}:   {may: perType(0, AttrCurState|AttrAccess, AttrCurState|AttrQKey)},
	{StateErr, StateReset}: {},
	{StateErr, StateErr}:   {},
}

// TransitionError reports an illegal QP state transition.
type TransitionError struct {
	// Type is the QP type.
	Type QPType
	// From and To are the current and the requested state.
	From, To QPState
	// Missing is the set of required attributes absent from the mask.
	Missing QPAttrMask
	// Unexpected is the set of attributes that the transition does not allow. Both sets are empty if the
	// transition does not exist.
	Unexpected QPAttrMask
}

// Error names both states and the missing or unexpected attributes.
func (e *TransitionError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s QP cannot go from %s to %s", e.Type, e.From, e.To)
	if e.Missing != 0 {
		fmt.Fprintf(&b, "; missing attributes: %s", e.Missing)
	}
	if e.Unexpected != 0 {
		fmt.Fprintf(&b, "; attributes not allowed here: %s", e.Unexpected)
	}
	if e.Missing|e.Unexpected == 0 {
		b.WriteString("; there is no such transition")
	}
	return b.String()
}

// Unwrap returns ErrState if the transition does not exist, and ErrInvalid if only the attributes
// are wrong.
func (e *TransitionError) Unwrap() error {
	if e.Missing|e.Unexpected == 0 {
		return ErrState
	}
	return ErrInvalid
}

// CheckTransition returns nil if a QP of type t may move between the two states with the attributes in
// mask, and a *TransitionError otherwise. AttrState in mask is ignored.
func CheckTransition(t QPType, from, to QPState, mask QPAttrMask) error {
	tr, ok := transitions[[2]QPState{from, to}]
	if !ok || (t == RC && from == StateSQE) {
		return &TransitionError{Type: t, From: from, To: to}
	}
	mask &^= AttrState
	missing := tr.must[t] &^ mask
	unexpected := mask &^ (tr.must[t] | tr.may[t])
	if missing|unexpected != 0 {
		return &TransitionError{Type: t, From: from, To: to, Missing: missing, Unexpected: unexpected}
	}
	return nil
}
