package verbs

import (
	"fmt"
	"strings"
)

// QPAttr holds the attributes of a QP (struct ibv_qp_attr).
type QPAttr struct {
	State     QPState // the state to enter, or the current one
	CurState  QPState // the state that the caller expects now; checked with AttrCurState
	PathMTU   MTU     // packet payload limit
	QKey      uint32  // UD only
	RQPSN     uint32  // the first PSN expected from the peer
	SQPSN     uint32  // the first PSN sent
	DestQPN   uint32  // the peer's QP number
	Access    Access  // remote operations that the QP allows
	AH        AHAttr  // the path to the peer
	PKeyIndex uint16  // row in the P_Key table
	Port      uint8   // local port

	// MaxRdAtomic is the maximum number of READs and atomics that the QP has outstanding.
	MaxRdAtomic uint8
	// MaxDestRdAtomic is the maximum number of outstanding READs and atomics that the QP serves.
	MaxDestRdAtomic uint8
	// MinRNRTimer is the delay before the peer retries after an RNR NAK, as a code (RNRTimer).
	MinRNRTimer uint8
	// Timeout is the acknowledgement timeout as a code (AckTimeout); 0 disables it.
	Timeout uint8
	// RetryCount is the maximum number of retransmissions after timeouts, at most 7.
	RetryCount uint8
	// RNRRetry is the maximum number of retransmissions after RNR NAKs; 7 means unlimited.
	RNRRetry uint8
	// SQDNotify requests EventSQDrained on the transition to SQD.
	SQDNotify bool
}

// Set copies the attributes in mask from b, except State and CurState. Providers use it to keep a QP's
// attributes.
func (a *QPAttr) Set(b *QPAttr, mask QPAttrMask) {
	setIf(mask&AttrPathMTU, &a.PathMTU, b.PathMTU)
	setIf(mask&AttrQKey, &a.QKey, b.QKey)
	setIf(mask&AttrRQPSN, &a.RQPSN, b.RQPSN)
	setIf(mask&AttrSQPSN, &a.SQPSN, b.SQPSN)
	setIf(mask&AttrDestQPN, &a.DestQPN, b.DestQPN)
	setIf(mask&AttrAccess, &a.Access, b.Access)
	setIf(mask&AttrAV, &a.AH, b.AH)
	setIf(mask&AttrPKeyIndex, &a.PKeyIndex, b.PKeyIndex)
	setIf(mask&AttrPort, &a.Port, b.Port)
	setIf(mask&AttrMaxRdAtomic, &a.MaxRdAtomic, b.MaxRdAtomic)
	setIf(mask&AttrMaxDestRdAtomic, &a.MaxDestRdAtomic, b.MaxDestRdAtomic)
	setIf(mask&AttrMinRNRTimer, &a.MinRNRTimer, b.MinRNRTimer)
	setIf(mask&AttrTimeout, &a.Timeout, b.Timeout)
	setIf(mask&AttrRetryCount, &a.RetryCount, b.RetryCount)
	setIf(mask&AttrRNRRetry, &a.RNRRetry, b.RNRRetry)
	setIf(mask&AttrSQDNotify, &a.SQDNotify, b.SQDNotify)
}

// Check returns ErrInvalid if an attribute in mask exceeds its field on the wire. It ignores device
// limits.
func (a *QPAttr) Check(mask QPAttrMask) error {
	for _, f := range [...]struct {
		bit         QPAttrMask
		name        string
		value, most uint32
	}{
		{AttrDestQPN, "DestQPN", a.DestQPN, 1<<24 - 1},
		{AttrRQPSN, "RQPSN", a.RQPSN, 1<<24 - 1},
		{AttrSQPSN, "SQPSN", a.SQPSN, 1<<24 - 1},
		{AttrMinRNRTimer, "MinRNRTimer", uint32(a.MinRNRTimer), 31},
		{AttrTimeout, "Timeout", uint32(a.Timeout), 31},
		{AttrRetryCount, "RetryCount", uint32(a.RetryCount), 7},
		{AttrRNRRetry, "RNRRetry", uint32(a.RNRRetry), 7},
	} {
		if mask&f.bit != 0 && f.value > f.most {
			return Invalidf("QPAttr.%s: want at most %d, not %d", f.name, f.most, f.value)
		}
	}
	if mask&AttrDestQPN != 0 && a.DestQPN == 0 {
		return Invalidf("QPAttr.DestQPN: want a QP number above 0")
	}
	return nil
}

func setIf[T any](named QPAttrMask, dst *T, v T) {
	if named != 0 {
		*dst = v
	}
}

// QPAttrMask is the set of attributes that a Modify changes.
type QPAttrMask uint32

// Attribute masks, numbered as in enum ibv_qp_attr_mask.
const (
	AttrState           QPAttrMask = 1 << 0
	AttrCurState        QPAttrMask = 1 << 1
	AttrSQDNotify       QPAttrMask = 1 << 2
	AttrAccess          QPAttrMask = 1 << 3
	AttrPKeyIndex       QPAttrMask = 1 << 4
	AttrPort            QPAttrMask = 1 << 5
	AttrQKey            QPAttrMask = 1 << 6
	AttrAV              QPAttrMask = 1 << 7
	AttrPathMTU         QPAttrMask = 1 << 8
	AttrTimeout         QPAttrMask = 1 << 9
	AttrRetryCount      QPAttrMask = 1 << 10
	AttrRNRRetry        QPAttrMask = 1 << 11
	AttrRQPSN           QPAttrMask = 1 << 12
	AttrMaxRdAtomic     QPAttrMask = 1 << 13
	AttrMinRNRTimer     QPAttrMask = 1 << 15
	AttrSQPSN           QPAttrMask = 1 << 16
	AttrMaxDestRdAtomic QPAttrMask = 1 << 17
	AttrDestQPN         QPAttrMask = 1 << 20
)

var attrNames = map[QPAttrMask]string{
	AttrState:           "STATE",
	AttrCurState:        "CUR_STATE",
	AttrSQDNotify:       "EN_SQD_ASYNC_NOTIFY",
	AttrAccess:          "ACCESS_FLAGS",
	AttrPKeyIndex:       "PKEY_INDEX",
	AttrPort:            "PORT",
	AttrQKey:            "QKEY",
	AttrAV:              "AV",
	AttrPathMTU:         "PATH_MTU",
	AttrTimeout:         "TIMEOUT",
	AttrRetryCount:      "RETRY_CNT",
	AttrRNRRetry:        "RNR_RETRY",
	AttrRQPSN:           "RQ_PSN",
	AttrMaxRdAtomic:     "MAX_QP_RD_ATOMIC",
	AttrMinRNRTimer:     "MIN_RNR_TIMER",
	AttrSQPSN:           "SQ_PSN",
	AttrMaxDestRdAtomic: "MAX_DEST_RD_ATOMIC",
	AttrDestQPN:         "DEST_QPN",
}

// String lists the attributes by their libibverbs names.
func (m QPAttrMask) String() string {
	if m == 0 {
		return "none"
	}
	var parts []string
	for bit := QPAttrMask(1); bit != 0; bit <<= 1 {
		if m&bit == 0 {
			continue
		}
		name, ok := attrNames[bit]
		if !ok {
			name = fmt.Sprintf("%#x", uint32(bit))
		}
		parts = append(parts, name)
	}
	return strings.Join(parts, ", ")
}
