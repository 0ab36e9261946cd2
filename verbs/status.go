package verbs

import "fmt"

// Status is the status of a completion.
type Status uint8

// Completion statuses, numbered as in enum ibv_wc_status.
const (
	StatusSuccess          Status = 0
	StatusLocLenErr        Status = 1
	StatusLocQPOpErr       Status = 2
	StatusLocEECOpErr      Status = 3
	StatusLocProtErr       Status = 4
	StatusWRFlushErr       Status = 5
	StatusMWBindErr        Status = 6
	StatusBadRespErr       Status = 7
	StatusLocAccessErr     Status = 8
	StatusRemInvReqErr     Status = 9
	StatusRemAccessErr     Status = 10
	StatusRemOpErr         Status = 11
	StatusRetryExcErr      Status = 12
	StatusRNRRetryExcErr   Status = 13
	StatusLocRDDViolErr    Status = 14
	StatusRemInvRDReqErr   Status = 15
	StatusRemAbortErr      Status = 16
	StatusInvEECNErr       Status = 17
	StatusInvEECStateErr   Status = 18
	StatusFatalErr         Status = 19
	StatusRespTimeoutErr   Status = 20
	StatusGeneralErr       Status = 21
	StatusTMErr            Status = 22
	StatusTMRndvIncomplete Status = 23
)

// statusText holds the wording of ibv_wc_status_str(3) and the usual cause, if there
// is one.
var statusText = [...]struct{ words, cause string }{
	StatusSuccess:          {"success", ""},
	StatusLocLenErr:        {"local length error", "the message does not fit the posted buffer, or exceeds what the QP can send"},
	StatusLocQPOpErr:       {"local QP operation error", "the work request is not consistent with the QP's configuration"},
	StatusLocEECOpErr:      {"local EE context operation error", ""},
	StatusLocProtErr:       {"local protection error", "an SGE is not inside the region of its lkey, or the region lacks local write or belongs to another PD"},
	StatusWRFlushErr:       {"Work Request Flushed Error", "the QP went to the error state while the request was outstanding; look for an earlier failed completion"},
	StatusMWBindErr:        {"memory management operation error", ""},
	StatusBadRespErr:       {"bad response error", "the peer answered with an unexpected transport opcode"},
	StatusLocAccessErr:     {"local access error", "a protection error on a local data buffer while a WRITE_WITH_IMM was received"},
	StatusRemInvReqErr:     {"remote invalid request error", "the responder found the request invalid: message longer than its receive buffer, misaligned atomic, or an operation its QP does not allow"},
	StatusRemAccessErr:     {"remote access error", "the rkey is wrong or stale, the range is outside its region, or the region does not allow the access"},
	StatusRemOpErr:         {"remote operation error", "the responder could not finish the operation: a bad receive request on its side"},
	StatusRetryExcErr:      {"transport retry counter exceeded", "the peer did not answer: its QP is not connected or in error, its host or port is down, or the path loses packets"},
	StatusRNRRetryExcErr:   {"RNR retry counter exceeded", "the receiver had no receive posted for too long"},
	StatusLocRDDViolErr:    {"local RDD violation error", ""},
	StatusRemInvRDReqErr:   {"remote invalid RD request", ""},
	StatusRemAbortErr:      {"aborted error", ""},
	StatusInvEECNErr:       {"invalid EE context number", ""},
	StatusInvEECStateErr:   {"invalid EE context state", ""},
	StatusFatalErr:         {"fatal error", "the device failed"},
	StatusRespTimeoutErr:   {"response timeout error", ""},
	StatusGeneralErr:       {"general error", ""},
	StatusTMErr:            {"TM error", ""},
	StatusTMRndvIncomplete: {"TM software rendezvous", ""},
}

// String returns the wording of ibv_wc_status_str(3).
func (s Status) String() string {
	if int(s) < len(statusText) {
		return statusText[s].words
	}
	return fmt.Sprintf("unknown (%d)", uint8(s))
}

// Cause returns the usual cause of the status as one phrase, or "" if it is unknown.
func (s Status) Cause() string {
	if int(s) < len(statusText) {
		return statusText[s].cause
	}
	return ""
}

// nameOf returns the name of an enumerated value, or its type and number if it is unknown.
func nameOf[T ~uint8](v T, typ string, names []string) string {
	if int(v) < len(names) && names[v] != "" {
		return names[v]
	}
	return fmt.Sprintf("%s(%d)", typ, uint8(v))
}
