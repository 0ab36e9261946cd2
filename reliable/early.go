package reliable

import "ibverbx/verbs"

// A QP in RTR receives and serves, but the peer needs its card before, and an RC QP in RTR sends nothing. So
// the side QP goes to RTS on its own as soon as a card asks for an answer. The PSN for that, which the user has
// not told yet, is in the card. What the user sets afterwards, on the way to RTS, is kept beside the side QP:
//
//	user's QP   side QP
//	INIT        INIT
//	RTR         RTR
//	            RTS       a card asks: answerEarly
//	RTS                   earlyAttrs are kept in sideQP.later

// earlyAttrs are the attributes that take an RC QP from RTR to RTS.
const earlyAttrs = verbs.AttrSQPSN | verbs.AttrTimeout | verbs.AttrRetryCount | verbs.AttrRNRRetry | verbs.AttrMaxRdAtomic

// answerEarly takes the side QP to RTS before the user's QP. The peer expects psn. If that is refused, the peer
// gets its answer when the user's QP is in RTS.
func (s *sideQP) answerEarly(psn uint32) {
	attr := verbs.QPAttr{
		State: verbs.StateRTS, SQPSN: psn,
		Timeout: verbs.DefaultTimeout, RetryCount: verbs.DefaultRetryCount, RNRRetry: verbs.DefaultRNRRetry,
	}
	s.early = s.Modify(attr, verbs.AttrState|earlyAttrs) == nil
}

// speaks reports whether the QP can send cards, unless it has failed.
func (s *sideQP) speaks() bool { return s.user.state == verbs.StateRTS || s.early }

// modify does what the user's Modify asks of the side QP, on the way of the user's QP to a state.
func (s *sideQP) modify(attr verbs.QPAttr, mask verbs.QPAttrMask, to verbs.QPState) error {
	if mask&verbs.AttrRQPSN != 0 {
		s.expects = attr.RQPSN
	}
	if s.early && s.user.state == verbs.StateRTR && to == verbs.StateRTS {
		if err := attr.Check(mask); err != nil {
			return s.user.opError("modify QP", err)
		}
		s.later.Set(&attr, mask&earlyAttrs)
		if mask &^= earlyAttrs | verbs.AttrState | verbs.AttrCurState; mask == 0 {
			return nil
		}
	}
	return s.Modify(attr, mask)
}

// query returns the attributes that the user has set.
func (s *sideQP) query() (verbs.QPAttr, error) {
	a, err := s.Query()
	if s.early {
		a.Set(&s.later, earlyAttrs)
	}
	return a, err
}

// forget makes the QP as new, after it was reset.
func (s *sideQP) forget() {
	s.introduced, s.expects, s.early, s.later = false, 0, false, verbs.QPAttr{}
}
