//go:build linux && cgo && !386 && !arm && !mips && !mipsle

package rdmacore_test

import (
	"maps"

	"ibverbx/verbs"
)

// rxeSubstitutes lists incorrect statuses that Soft-RoCE reports, and why they are accepted.
var rxeSubstitutes = []struct {
	right, reported verbs.Status
	reason          string
}{
	{
		verbs.StatusLocProtErr, verbs.StatusLocQPOpErr,
		"a memory error detected before the first packet is reported like an operation that does not fit the QP; IBTA 11.6.2 specifies LOC_PROT_ERR",
	},
	{
		verbs.StatusLocLenErr, verbs.StatusLocQPOpErr,
		"a receive that is too small is reported in the same way; IBTA 11.6.2 specifies LOC_LEN_ERR",
	},
	{
		verbs.StatusLocAccessErr, verbs.StatusRemAccessErr,
		"the receive consumed by a refused WRITE_WITH_IMM fails with the requester's status; IBTA 11.6.2 specifies LOC_ACCESS_ERR",
	},
	{
		verbs.StatusRemInvReqErr, verbs.StatusRemOpErr,
		"the sender of a message longer than its receive gets an operation error; IBTA 11.6.2 specifies REM_INV_REQ_ERR",
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
	rxeNoSQE       = "moves UC and UD QPs to ERR on a local error; IBTA 10.3.1.6 requires SQE"
	rxeNoQPEvents  = "raises neither QP_ACCESS_ERR nor QP_REQ_ERR; ibv_get_async_event(3) defines both"
	rxeNoCommEst   = "does not raise COMM_EST; ibv_get_async_event(3)"
	rxeNoLastWQE   = "does not raise LAST_WQE_REACHED for a QP with an SRQ; ibv_get_async_event(3)"
	rxeOverrun     = "drops excess completions, raises CQ_ERR and leaves the QPs unchanged; IBTA 11.6.3.1 moves them to ERR"
	rxeMisaligned  = "refuses a misaligned atomic at post time, in its library, so the responder never sees one; IBTA 9.4.5"
	rxeLoopbackGRH = "delivers an IPv4 header without a checksum for datagrams within one device"
)

// rxeDepartures lists departures of Soft-RoCE in Linux 6.1 with rdma-core 44 from the specification
// and the manual pages, between two devices.
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
	"ud/ControlledQKey":                   "sends a Q_Key with the high bit set unchanged; IBTA 10.2.5 replaces it with the QP's Q_Key",
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
