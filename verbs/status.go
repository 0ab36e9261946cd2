package verbs

import "fmt"

// Status is the status of a completion.
type Status uint8

// Completion statuses, numbered as in enum ibv_wc_status.
const (
	StatusSuccess          Status = 0  // completed
	StatusLocLenErr        Status = 1  // message does not fit the posted buffer, or exceeds the QP's limit
	StatusLocQPOpErr       Status = 2  // request inconsistent with the QP's configuration
	StatusLocEECOpErr      Status = 3  // reliable datagrams, unused
	StatusLocProtErr       Status = 4  // local key or range invalid
	StatusWRFlushErr       Status = 5  // flushed because the QP is in the error state
	StatusMWBindErr        Status = 6  // memory management operation failed
	StatusBadRespErr       Status = 7  // unexpected transport opcode in a response
	StatusLocAccessErr     Status = 8  // protection error while receiving a WRITE_WITH_IMM
	StatusRemInvReqErr     Status = 9  // peer rejected the request as invalid
	StatusRemAccessErr     Status = 10 // peer's key, range or access right invalid
	StatusRemOpErr         Status = 11 // peer could not complete the operation
	StatusRetryExcErr      Status = 12 // peer does not respond
	StatusRNRRetryExcErr   Status = 13 // peer had no receive posted for too long
	StatusLocRDDViolErr    Status = 14 // reliable datagrams, unused
	StatusRemInvRDReqErr   Status = 15 // reliable datagrams, unused
	StatusRemAbortErr      Status = 16 // operation aborted
	StatusInvEECNErr       Status = 17 // reliable datagrams, unused
	StatusInvEECStateErr   Status = 18 // reliable datagrams, unused
	StatusFatalErr         Status = 19 // device failed
	StatusRespTimeoutErr   Status = 20 // response timeout
	StatusGeneralErr       Status = 21 // other error
	StatusTMErr            Status = 22 // tag matching error
	StatusTMRndvIncomplete Status = 23 // tag matching, software rendezvous
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
