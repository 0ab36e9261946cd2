//go:build linux && cgo && !386 && !arm && !mips && !mipsle

package rdmacore_test

import "maps"

// Reasons that several departures of Soft-RoCE share.
const (
	rxeWrongStatus = "reports LOC_QP_OP_ERR for a request or receive that is found bad before its first packet; " +
		"IBTA 11.6.2 names LOC_PROT_ERR for memory and LOC_LEN_ERR for length"
	rxeImmStatus   = "fails the receive of a refused WRITE_WITH_IMM with REM_ACCESS_ERR, which IBTA 11.6.2 defines for requesters"
	rxeNoSQE       = "takes UC and UD QPs to ERR on a local error; IBTA 10.3.1.6 wants SQE"
	rxeNoQPEvents  = "raises no QP_ACCESS_ERR and no QP_REQ_ERR; ibv_get_async_event(3) has both"
	rxeNoCommEst   = "raises no COMM_EST; ibv_get_async_event(3)"
	rxeNoLastWQE   = "raises no LAST_WQE_REACHED for a QP with an SRQ; ibv_get_async_event(3)"
	rxeOverrun     = "drops completions that do not fit, raises CQ_ERR and leaves the QPs as they are; IBTA 11.6.3.1 takes them to ERR"
	rxeMisaligned  = "its library refuses a misaligned atomic when it is posted, so that the responder never sees one"
	rxeLoopbackGRH = "delivers an IPv4 header without checksum for datagrams that stay in the device"
)

// rxeDepartures names what Soft-RoCE of Linux 6.1 with rdma-core 44 does otherwise than the
// specification and the manual pages say, between two devices.
var rxeDepartures = map[string]string{
	"memory/DeregisterUnderReceive":       rxeWrongStatus,
	"atomic/Misaligned":                   rxeMisaligned,
	"localerror/SendBadLKey/Key":          rxeWrongStatus,
	"localerror/SendBadLKey/OtherPD":      rxeWrongStatus,
	"localerror/SendBadLKey/Deregistered": rxeWrongStatus,

	"localerror/WriteBadLKey/Key":          rxeWrongStatus,
	"localerror/WriteBadLKey/OtherPD":      rxeWrongStatus,
	"localerror/WriteBadLKey/Deregistered": rxeWrongStatus,
	"localerror/ReceiveBadLKey":            rxeWrongStatus,
	"localerror/ReceiveTooSmall":           rxeWrongStatus,
	"localerror/ReceiveWithoutBuffer":      rxeWrongStatus,
	"remoteerror/WriteWithImm":             rxeImmStatus,
	"keys/LocalEveryBit":                   rxeWrongStatus,
	"limits/CQOverrun":                     rxeOverrun,
	"cq/OverrunByReceives":                 rxeOverrun,
	"cq/OverrunBySends":                    rxeOverrun,
	"wait/SolicitedOnlyFailed/FailedSend":  "does not count a failed send as solicited; IBTA 11.4.2.2",
	"srq/LastWQEReached":                   rxeNoLastWQE,
	"srq/FailureTakesOneReceive":           rxeWrongStatus,
	"srqrules/LastWQEByRemoteError":        rxeNoLastWQE,
	"uc/LocalErrorIsSQE":                   rxeNoSQE,
	"ucrules/LocalErrors":                  rxeNoSQE,
	"ucrules/EarlierRequestsSucceed":       rxeNoSQE,
	"ucrules/SQETransitions":               rxeNoSQE,
	"ud/ControlledQKey":                    "puts a Q_Key with the high bit set on the wire as it is; IBTA 10.2.5 puts that of the QP there",
	"ud/ReceiveTooSmall":                   rxeWrongStatus,
	"ud/LocalErrorIsSQE":                   rxeNoSQE,
	"udrules/LocalErrors":                  rxeNoSQE,
	"events/NeverBlocks":                   rxeNoQPEvents,
	"events/CommEst":                       rxeNoCommEst,
	"events/AccessError":                   rxeNoQPEvents,
	"events/RequestError":                  rxeMisaligned,
	"events/NoneForCompletedErrors":        rxeWrongStatus,
	"events/NotifyWakes":                   rxeNoQPEvents,
	"events/NotifyAlreadyQueued":           rxeNoQPEvents,
	"events/NotifyEnds":                    rxeNoQPEvents,
	"events/InOrder":                       rxeNoQPEvents,
	"events/OtherContextHearsNothing":      rxeNoQPEvents,
	"eventrules/CommEstByWrite":            rxeNoCommEst,
	"eventrules/ClosedQP":                  rxeNoLastWQE,
	"eventrules/String":                    rxeNoLastWQE,
	"close/MRUnderSend":                    rxeWrongStatus,
}

// rxeLoopback is the same within one device.
var rxeLoopback = func() map[string]string {
	m := maps.Clone(rxeDepartures)
	m["ud/Reply"] = rxeLoopbackGRH
	m["udrules/GRHSplit"] = rxeLoopbackGRH
	return m
}()
