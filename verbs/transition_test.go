package verbs_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"ibverbx/verbs"
)

// The legal transitions, each with its required attributes, a bar, and its optional
// ones. The required ones are from ibv_modify_qp(3). The optional ones are from IBTA
// volume 1 section 11.2.5.2 as implemented by the Linux kernel (qp_state_table in
// drivers/infiniband/core/verbs.c), without alternate paths.
const legalTransitions = `
RC RESET RESET |
RC RESET INIT  | PKEY_INDEX PORT ACCESS_FLAGS |
RC INIT  RESET |
RC INIT  ERR   |
RC INIT  INIT  | | PKEY_INDEX PORT ACCESS_FLAGS
RC INIT  RTR   | AV PATH_MTU DEST_QPN RQ_PSN MAX_DEST_RD_ATOMIC MIN_RNR_TIMER | ACCESS_FLAGS PKEY_INDEX
RC RTR   RESET |
RC RTR   ERR   |
RC RTR   RTS   | TIMEOUT RETRY_CNT RNR_RETRY SQ_PSN MAX_QP_RD_ATOMIC | CUR_STATE ACCESS_FLAGS MIN_RNR_TIMER
RC RTS   RESET |
RC RTS   ERR   |
RC RTS   RTS   | | CUR_STATE ACCESS_FLAGS MIN_RNR_TIMER
RC RTS   SQD   | | EN_SQD_ASYNC_NOTIFY
RC SQD   RESET |
RC SQD   ERR   |
RC SQD   RTS   | | CUR_STATE ACCESS_FLAGS MIN_RNR_TIMER
RC SQD   SQD   | | PORT AV TIMEOUT RETRY_CNT RNR_RETRY MAX_QP_RD_ATOMIC MAX_DEST_RD_ATOMIC ACCESS_FLAGS PKEY_INDEX MIN_RNR_TIMER
RC ERR   RESET |
RC ERR   ERR   |

UC RESET RESET |
UC RESET INIT  | PKEY_INDEX PORT ACCESS_FLAGS |
UC INIT  RESET |
UC INIT  ERR   |
UC INIT  INIT  | | PKEY_INDEX PORT ACCESS_FLAGS
UC INIT  RTR   | AV PATH_MTU DEST_QPN RQ_PSN | ACCESS_FLAGS PKEY_INDEX
UC RTR   RESET |
UC RTR   ERR   |
UC RTR   RTS   | SQ_PSN | CUR_STATE ACCESS_FLAGS
UC RTS   RESET |
UC RTS   ERR   |
UC RTS   RTS   | | CUR_STATE ACCESS_FLAGS
UC RTS   SQD   | | EN_SQD_ASYNC_NOTIFY
UC SQD   RESET |
UC SQD   ERR   |
UC SQD   RTS   | | CUR_STATE ACCESS_FLAGS
UC SQD   SQD   | | AV ACCESS_FLAGS PKEY_INDEX
UC SQE   RESET |
UC SQE   ERR   |
UC SQE   RTS   | | CUR_STATE ACCESS_FLAGS
UC ERR   RESET |
UC ERR   ERR   |

UD RESET RESET |
UD RESET INIT  | PKEY_INDEX PORT QKEY |
UD INIT  RESET |
UD INIT  ERR   |
UD INIT  INIT  | | PKEY_INDEX PORT QKEY
UD INIT  RTR   | | PKEY_INDEX QKEY
UD RTR   RESET |
UD RTR   ERR   |
UD RTR   RTS   | SQ_PSN | CUR_STATE QKEY
UD RTS   RESET |
UD RTS   ERR   |
UD RTS   RTS   | | CUR_STATE QKEY
UD RTS   SQD   | | EN_SQD_ASYNC_NOTIFY
UD SQD   RESET |
UD SQD   ERR   |
UD SQD   RTS   | | CUR_STATE QKEY
UD SQD   SQD   | | PKEY_INDEX QKEY
UD SQE   RESET |
UD SQE   ERR   |
UD SQE   RTS   | | CUR_STATE QKEY
UD ERR   RESET |
UD ERR   ERR   |
`

var attrByName = map[string]verbs.QPAttrMask{
	"CUR_STATE":           1 << 1,
	"EN_SQD_ASYNC_NOTIFY": 1 << 2,
	"ACCESS_FLAGS":        1 << 3,
	"PKEY_INDEX":          1 << 4,
	"PORT":                1 << 5,
	"QKEY":                1 << 6,
	"AV":                  1 << 7,
	"PATH_MTU":            1 << 8,
	"TIMEOUT":             1 << 9,
	"RETRY_CNT":           1 << 10,
	"RNR_RETRY":           1 << 11,
	"RQ_PSN":              1 << 12,
	"MAX_QP_RD_ATOMIC":    1 << 13,
	"MIN_RNR_TIMER":       1 << 15,
	"SQ_PSN":              1 << 16,
	"MAX_DEST_RD_ATOMIC":  1 << 17,
	"DEST_QPN":            1 << 20,
}

type edge struct{ must, may verbs.QPAttrMask }

func edgeName(t verbs.QPType, from, to verbs.QPState) string {
	return fmt.Sprint(t, " ", from, " ", to)
}

func parseTransitions(t *testing.T) map[string]edge {
	mask := func(names string) (m verbs.QPAttrMask) {
		for _, name := range strings.Fields(names) {
			bit, ok := attrByName[name]
			if !ok {
				t.Fatalf("no attribute is called %q", name)
			}
			m |= bit
		}
		return m
	}
	edges := map[string]edge{}
	for line := range strings.Lines(legalTransitions) {
		if strings.TrimSpace(line) == "" {
			continue
		}
		key, masks, _ := strings.Cut(line, "|")
		must, may, _ := strings.Cut(masks, "|")
		edges[strings.Join(strings.Fields(key), " ")] = edge{mask(must), mask(may)}
	}
	return edges
}

// Every pair of states on every transport, with each attribute in turn missing or
// unexpected.
func TestCheckTransition(t *testing.T) {
	edges := parseTransitions(t)
	seen := 0
	for _, qpt := range []verbs.QPType{verbs.RC, verbs.UC, verbs.UD} {
		for from := verbs.StateReset; from <= verbs.StateErr; from++ {
			for to := verbs.StateReset; to <= verbs.StateErr; to++ {
				e, ok := edges[edgeName(qpt, from, to)]
				if !ok {
					wantNoTransition(t, qpt, from, to)
					continue
				}
				seen++
				checkEdge(t, qpt, from, to, e)
			}
		}
	}
	if seen != len(edges) {
		t.Errorf("%d of %d legal transitions were tried", seen, len(edges))
	}
}

func wantNoTransition(t *testing.T, qpt verbs.QPType, from, to verbs.QPState) {
	t.Helper()
	for _, mask := range []verbs.QPAttrMask{0, verbs.AttrState, verbs.AttrState | verbs.AttrSQPSN, ^verbs.QPAttrMask(0)} {
		err := verbs.CheckTransition(qpt, from, to, mask)
		var te *verbs.TransitionError
		if !errors.As(err, &te) || !errors.Is(err, verbs.ErrState) {
			t.Errorf("%s with %v: got %v, want that there is no such transition", edgeName(qpt, from, to), mask, err)
			continue
		}
		if want := (verbs.TransitionError{Type: qpt, From: from, To: to}); *te != want {
			t.Errorf("%s: got %+v, want %+v", edgeName(qpt, from, to), *te, want)
		}
	}
}

func checkEdge(t *testing.T, qpt verbs.QPType, from, to verbs.QPState, e edge) {
	t.Helper()
	name := edgeName(qpt, from, to)
	for _, mask := range []verbs.QPAttrMask{e.must, e.must | e.may, e.must | verbs.AttrState} {
		if err := verbs.CheckTransition(qpt, from, to, mask); err != nil {
			t.Errorf("%s with %v: %v", name, mask, err)
		}
	}
	for bit := verbs.QPAttrMask(2); bit != 0; bit <<= 1 { // all except AttrState
		want := verbs.TransitionError{Type: qpt, From: from, To: to}
		var mask verbs.QPAttrMask
		switch {
		case e.must&bit != 0:
			mask, want.Missing = e.must&^bit, bit
		case e.may&bit == 0:
			mask, want.Unexpected = e.must|bit, bit
		default:
			continue
		}
		err := verbs.CheckTransition(qpt, from, to, mask)
		var te *verbs.TransitionError
		if !errors.As(err, &te) || *te != want || !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%s with %v: got %v, want %v", name, mask, err, &want)
		}
	}
}

func TestTransitionErrorText(t *testing.T) {
	tests := []struct {
		err  error
		want string
	}{
		{
			verbs.CheckTransition(verbs.RC, verbs.StateReset, verbs.StateRTS, verbs.AttrState),
			"RC QP cannot go from RESET to RTS; there is no such transition",
		},
		{
			verbs.CheckTransition(verbs.UC, verbs.StateRTR, verbs.StateRTS, verbs.AttrState),
			"UC QP cannot go from RTR to RTS; missing attributes: SQ_PSN",
		},
		{
			verbs.CheckTransition(verbs.UD, verbs.StateReset, verbs.StateInit, verbs.AttrState|verbs.AttrPort|verbs.AttrAccess),
			"UD QP cannot go from RESET to INIT; missing attributes: PKEY_INDEX, QKEY; attributes not allowed here: ACCESS_FLAGS",
		},
	}
	for _, tt := range tests {
		if tt.err == nil || tt.err.Error() != tt.want {
			t.Errorf("got  %v\nwant %s", tt.err, tt.want)
		}
	}
}

func TestAttrMaskString(t *testing.T) {
	if got := verbs.QPAttrMask(0).String(); got != "none" {
		t.Errorf("QPAttrMask(0).String() = %q", got)
	}
	for name, bit := range attrByName {
		if got := bit.String(); got != name {
			t.Errorf("QPAttrMask(%#x).String() = %q, want %q", uint32(bit), got, name)
		}
	}
	if got := (verbs.AttrState | 1<<31).String(); got != "STATE, 0x80000000" {
		t.Errorf("unknown bit: %q", got)
	}
}
