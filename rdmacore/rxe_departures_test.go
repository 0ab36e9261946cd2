//go:build linux && cgo && !386 && !arm && !mips && !mipsle

package rdmacore_test

import (
	"maps"

	"ibverbx/verbs"
)

// rxeSubstitutes are the statuses that Soft-RoCE confuses, and the reasons for accepting one for
// the other.
var rxeSubstitutes = []struct {
	right, reported verbs.Status
	reason          string
}{
	{
		verbs.StatusLocProtErr, verbs.StatusLocQPOpErr,
		"a request or receive whose memory is found bad before its first packet ends like one that does not fit the QP; IBTA 11.6.2 names LOC_PROT_ERR",
	},
	{
		verbs.StatusLocLenErr, verbs.StatusLocQPOpErr,
		"so does a receive that is too small; IBTA 11.6.2 names LOC_LEN_ERR",
	},
	{
		verbs.StatusLocAccessErr, verbs.StatusRemAccessErr,
		"the receive that a refused WRITE_WITH_IMM had taken ends with the status of the requester; IBTA 11.6.2 names LOC_ACCESS_ERR",
	},
	{
		verbs.StatusRemInvReqErr, verbs.StatusRemOpErr,
		"the sender of a message that is too long for its receive is told of an operation that failed; IBTA 11.6.2 names REM_INV_REQ_ERR",
	},
}

// substitutes returns rxeSubstitutes in the form of the suite.
func substitutes() map[verbs.Status][]verbs.Status {
	m := map[verbs.Status][]verbs.Status{}
	for _, s := range rxeSubstitutes {
		m[s.right] = append(m[s.right], s.reported)
	}
	return m
}

// Reasons shared by several departures of Soft-RoCE.
const (
	rxeNoSQE       = "takes UC and UD QPs to ERR on a local error; IBTA 10.3.1.6 wants SQE"
	rxeNoQPEvents  = "raises no QP_ACCESS_ERR and no QP_REQ_ERR; ibv_get_async_event(3) has both"
	rxeNoCommEst   = "raises no COMM_EST; ibv_get_async_event(3)"
	rxeNoLastWQE   = "raises no LAST_WQE_REACHED for a QP with an SRQ; ibv_get_async_event(3)"
	rxeOverrun     = "drops completions that do not fit, raises CQ_ERR and leaves the QPs as they are; IBTA 11.6.3.1 takes them to ERR"
	rxeMisaligned  = "refuses a misaligned atomic when it is posted, in its library, so that the responder never sees one; IBTA 9.4.5"
	rxeLoopbackGRH = "delivers an IPv4 header without checksum for datagrams that stay in the device"
)

// rxeDepartures lists where Soft-RoCE of Linux 6.1 with rdma-core 44 departs from the
// specification and the manual pages, between two devices.
var rxeDepartures = map[string]string{
	"atomic/Misaligned": rxeMisaligned,

	"cq/OverrunByReceives":                rxeOverrun,
	"cq/OverrunBySends":                   rxeOverrun,
	"wait/SolicitedOnlyFailed/FailedSend": "does not count a failed send as solicited; IBTA 11.4.2.2",
	"srq/LastWQEReached":                  rxeNoLastWQE,
	"srq/FailureTakesOneReceive":          rxeNoLastWQE,
	"srq/LastWQEByRemoteError":            rxeNoLastWQE,
	"uc/LocalErrors":                      rxeNoSQE,
	"uc/EarlierRequestsSucceed":           rxeNoSQE,
	"uc/SQETransitions":                   rxeNoSQE,
	"ud/ControlledQKey":                   "puts a Q_Key with the high bit set on the wire as it is; IBTA 10.2.5 puts that of the QP there",
	"ud/LocalErrors":                      rxeNoSQE,
	"events/CommEst":                      rxeNoCommEst,
	"events/AccessError":                  rxeNoQPEvents,
	"events/RequestError":                 rxeMisaligned,
	"events/CommEstByWrite":               rxeNoCommEst,
	"events/ClosedQP":                     rxeNoLastWQE,
	"events/String":                       rxeNoLastWQE,
}

// rxeLoopback is the same list within one device.
var rxeLoopback = func() map[string]string {
	m := maps.Clone(rxeDepartures)
	m["ud/Reply"] = rxeLoopbackGRH
	m["ud/GRHSplit"] = rxeLoopbackGRH
	return m
}()
