package reliable

import "ibverbx/verbs"

// A QP in RTR receives and responds, but the peer needs its card first, and an RC QP in RTR cannot send. So
// the handshake QP enters RTS by itself as soon as a card requests one. The user has not set its PSN yet;
// it is in the card. Attributes that the user sets later, with RTS, are kept next to the handshake QP:
//
//	user's QP   handshake QP
//	INIT        INIT
//	RTR         RTR
//	            RTS       a card requests one: enterRTSEarly
//	RTS                   rtsAttrs are kept in handshakeQP.deferred

// rtsAttrs are the attributes that take an RC QP from RTR to RTS.
const rtsAttrs = verbs.AttrSQPSN | verbs.AttrTimeout | verbs.AttrRetryCount | verbs.AttrRNRRetry | verbs.AttrMaxRdAtomic

// enterRTSEarly moves the handshake QP to RTS before the user's QP. The peer expects psn. If this fails, the peer
// gets its response once the user's QP is in RTS.
func (s *handshakeQP) enterRTSEarly(psn uint32) {
	attr := verbs.QPAttr{
		State: verbs.StateRTS, SQPSN: psn,
		Timeout: verbs.DefaultTimeout, RetryCount: verbs.DefaultRetryCount, RNRRetry: verbs.DefaultRNRRetry,
	}
	s.earlyRTS = s.Modify(attr, verbs.AttrState|rtsAttrs) == nil
}

// canSend reports whether the QP is in RTS and can send cards, unless it has failed.
func (s *handshakeQP) canSend() bool {
	return s.user.state == verbs.StateRTS || (s.user.state == verbs.StateRTR && s.earlyRTS)
}

// modify applies the user's Modify to the handshake QP. The user's QP moves to state to.
func (s *handshakeQP) modify(attr verbs.QPAttr, mask verbs.QPAttrMask, to verbs.QPState) error {
	if mask&verbs.AttrRQPSN != 0 {
		s.peerPSN = attr.RQPSN
	}
	if s.earlyRTS && s.user.state == verbs.StateRTR && to == verbs.StateRTS {
		if err := attr.Check(mask); err != nil {
			return s.user.opError("modify QP", err)
		}
		s.deferred.Set(&attr, mask&rtsAttrs)
		if mask &^= rtsAttrs | verbs.AttrState | verbs.AttrCurState; mask == 0 {
			return nil
		}
	}
	return s.Modify(attr, mask)
}

// query returns the attributes that the user has set.
func (s *handshakeQP) query() (verbs.QPAttr, error) {
	a, err := s.Query()
	if s.earlyRTS {
		a.Set(&s.deferred, rtsAttrs)
	}
	return a, err
}

// reset clears the state after a reset of the QP.
func (s *handshakeQP) reset() {
	s.cardSent, s.peerPSN, s.earlyRTS, s.deferred = false, 0, false, verbs.QPAttr{}
}
