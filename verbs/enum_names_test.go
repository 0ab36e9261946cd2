package verbs_test

import (
	"fmt"
	"strings"
	"testing"

	"ibverbx/verbs"
)

// The texts of ibv_wc_status_str in the order of enum ibv_wc_status, printed by
// libibverbs 1.14 (rdma-core 44).
var wcStatusStr = []string{
	"success",
	"local length error",
	"local QP operation error",
	"local EE context operation error",
	"local protection error",
	"Work Request Flushed Error",
	"memory management operation error",
	"bad response error",
	"local access error",
	"remote invalid request error",
	"remote access error",
	"remote operation error",
	"transport retry counter exceeded",
	"RNR retry counter exceeded",
	"local RDD violation error",
	"remote invalid RD request",
	"aborted error",
	"invalid EE context number",
	"invalid EE context state",
	"fatal error",
	"response timeout error",
	"general error",
	"TM error",
	"TM software rendezvous",
}

// The texts of ibv_event_type_str, in the order of enum ibv_event_type.
var eventTypeStr = []string{
	"CQ error",
	"local work queue catastrophic error",
	"invalid request local work queue error",
	"local access violation work queue error",
	"communication established",
	"send queue drained",
	"path migrated",
	"path migration request error",
	"local catastrophic error",
	"port active",
	"port error",
	"LID change",
	"P_Key change",
	"SM change",
	"SRQ catastrophic error",
	"SRQ limit reached",
	"last WQE reached",
	"client reregistration",
	"GID table change",
	"WQ fatal",
}

func TestStatusWords(t *testing.T) {
	for i, want := range wcStatusStr {
		if got := verbs.Status(i).String(); got != want {
			t.Errorf("Status(%d).String() = %q, want %q", i, got, want)
		}
	}
	next := verbs.Status(len(wcStatusStr))
	if got := next.String(); got != "unknown (24)" {
		t.Errorf("Status(%d).String() = %q, want unknown", next, got)
	}
	if got := next.Cause(); got != "" {
		t.Errorf("Status(%d).Cause() = %q, want none", next, got)
	}
	// Statuses that users encounter have a cause.
	for _, s := range []verbs.Status{
		verbs.StatusLocLenErr, verbs.StatusLocQPOpErr, verbs.StatusLocProtErr, verbs.StatusWRFlushErr,
		verbs.StatusRemInvReqErr, verbs.StatusRemAccessErr, verbs.StatusRemOpErr, verbs.StatusRetryExcErr,
		verbs.StatusRNRRetryExcErr, verbs.StatusFatalErr,
	} {
		if s.Cause() == "" {
			t.Errorf("%v has no cause", s)
		}
	}
}

func TestEventWords(t *testing.T) {
	for i, want := range eventTypeStr {
		if got := verbs.EventType(i).String(); got != want {
			t.Errorf("EventType(%d).String() = %q, want %q", i, got, want)
		}
	}
	if got := verbs.EventType(len(eventTypeStr)).String(); got != "unknown (20)" {
		t.Errorf("the event type after the last = %q, want unknown", got)
	}
}

// The numbers match <infiniband/verbs.h>: rdmacore passes them through.
func TestNumbers(t *testing.T) {
	tests := []struct {
		name      string
		got, want int
	}{
		{"IBV_WC_WR_FLUSH_ERR", int(verbs.StatusWRFlushErr), 5},
		{"IBV_WC_REM_ACCESS_ERR", int(verbs.StatusRemAccessErr), 10},
		{"IBV_WC_RETRY_EXC_ERR", int(verbs.StatusRetryExcErr), 12},
		{"IBV_WC_RNR_RETRY_EXC_ERR", int(verbs.StatusRNRRetryExcErr), 13},
		{"IBV_WC_GENERAL_ERR", int(verbs.StatusGeneralErr), 21},
		{"IBV_EVENT_QP_LAST_WQE_REACHED", int(verbs.EventLastWQEReached), 16},
		{"IBV_EVENT_WQ_FATAL", int(verbs.EventWQFatal), 19},
		{"IBV_WC_RECV", int(verbs.WCRecv), 128},
		{"IBV_WC_RECV_RDMA_WITH_IMM", int(verbs.WCRecvRDMAWithImm), 129},
		{"IBV_WC_GRH", int(verbs.WCGRH), 1},
		{"IBV_WC_WITH_IMM", int(verbs.WCWithImm), 2},
		{"IBV_ACCESS_LOCAL_WRITE", int(verbs.AccessLocalWrite), 1},
		{"IBV_ACCESS_REMOTE_WRITE", int(verbs.AccessRemoteWrite), 2},
		{"IBV_ACCESS_REMOTE_READ", int(verbs.AccessRemoteRead), 4},
		{"IBV_ACCESS_REMOTE_ATOMIC", int(verbs.AccessRemoteAtomic), 8},
		{"IBV_ACCESS_RELAXED_ORDERING", int(verbs.AccessRelaxedOrdering), 0x100000},
		{"IBV_SEND_FENCE", int(verbs.SendFence), 1},
		{"IBV_SEND_SIGNALED", int(verbs.SendSignaled), 2},
		{"IBV_SEND_SOLICITED", int(verbs.SendSolicited), 4},
		{"IBV_SEND_INLINE", int(verbs.SendInline), 8},
		{"IBV_QP_STATE", int(verbs.AttrState), 0x1},
		{"IBV_QP_CUR_STATE", int(verbs.AttrCurState), 0x2},
		{"IBV_QP_EN_SQD_ASYNC_NOTIFY", int(verbs.AttrSQDNotify), 0x4},
		{"IBV_QP_ACCESS_FLAGS", int(verbs.AttrAccess), 0x8},
		{"IBV_QP_PKEY_INDEX", int(verbs.AttrPKeyIndex), 0x10},
		{"IBV_QP_PORT", int(verbs.AttrPort), 0x20},
		{"IBV_QP_QKEY", int(verbs.AttrQKey), 0x40},
		{"IBV_QP_AV", int(verbs.AttrAV), 0x80},
		{"IBV_QP_PATH_MTU", int(verbs.AttrPathMTU), 0x100},
		{"IBV_QP_TIMEOUT", int(verbs.AttrTimeout), 0x200},
		{"IBV_QP_RETRY_CNT", int(verbs.AttrRetryCount), 0x400},
		{"IBV_QP_RNR_RETRY", int(verbs.AttrRNRRetry), 0x800},
		{"IBV_QP_RQ_PSN", int(verbs.AttrRQPSN), 0x1000},
		{"IBV_QP_MAX_QP_RD_ATOMIC", int(verbs.AttrMaxRdAtomic), 0x2000},
		{"IBV_QP_MIN_RNR_TIMER", int(verbs.AttrMinRNRTimer), 0x8000},
		{"IBV_QP_SQ_PSN", int(verbs.AttrSQPSN), 0x10000},
		{"IBV_QP_MAX_DEST_RD_ATOMIC", int(verbs.AttrMaxDestRdAtomic), 0x20000},
		{"IBV_QP_DEST_QPN", int(verbs.AttrDestQPN), 0x100000},
	}
	for _, tt := range tests {
		if tt.got != tt.want {
			t.Errorf("%s is %#x here, want %#x", tt.name, tt.got, tt.want)
		}
	}
}

// Enumerations with consecutive numbers, by name in that order.
func TestEnumNames(t *testing.T) {
	check := func(name string, from int, value func(int) fmt.Stringer, want ...string) {
		t.Helper()
		for i, w := range want {
			if got := value(from + i).String(); got != w {
				t.Errorf("%s(%d).String() = %q, want %q", name, from+i, got, w)
			}
		}
		// A number beyond the last name is printed as a number.
		if got, num := value(from+len(want)).String(), fmt.Sprintf("(%d)", from+len(want)); !strings.HasSuffix(got, num) {
			t.Errorf("%s%s.String() = %q, want a text that ends in %s", name, num, got, num)
		}
	}
	check("Opcode", 0, func(i int) fmt.Stringer { return verbs.Opcode(i) }, "RDMA_WRITE", "RDMA_WRITE_WITH_IMM", "SEND",
		"SEND_WITH_IMM", "RDMA_READ", "ATOMIC_CMP_AND_SWP", "ATOMIC_FETCH_AND_ADD")
	check("WCOpcode", 0, func(i int) fmt.Stringer { return verbs.WCOpcode(i) }, "SEND", "RDMA_WRITE", "RDMA_READ", "COMP_SWAP", "FETCH_ADD")
	check("WCOpcode", 128, func(i int) fmt.Stringer { return verbs.WCOpcode(i) }, "RECV", "RECV_RDMA_WITH_IMM")
	check("QPType", 2, func(i int) fmt.Stringer { return verbs.QPType(i) }, "RC", "UC", "UD")
	check("QPState", 0, func(i int) fmt.Stringer { return verbs.QPState(i) }, "RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR")
	check("PortState", 0, func(i int) fmt.Stringer { return verbs.PortState(i) }, "PORT_NOP", "PORT_DOWN", "PORT_INIT", "PORT_ARMED",
		"PORT_ACTIVE", "PORT_ACTIVE_DEFER")
	check("AtomicCap", 0, func(i int) fmt.Stringer { return verbs.AtomicCap(i) }, "ATOMIC_NONE", "ATOMIC_HCA", "ATOMIC_GLOB")
	check("LinkLayer", 0, func(i int) fmt.Stringer { return verbs.LinkLayer(i) }, "Unspecified", "InfiniBand", "Ethernet")
	check("GIDType", 0, func(i int) fmt.Stringer { return verbs.GIDType(i) }, "IB", "RoCE v1", "RoCE v2")
}
