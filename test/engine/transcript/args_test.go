package transcript_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"ibverbx/verbs"
)

// args are the words of a line of a transcript after the command: some are key=value, the
// others stand for themselves. Every word must be used by the command.
type args struct {
	st    *stage
	words []string
}

func (a *args) fatalf(format string, v ...any) {
	a.st.tb.Helper()
	a.st.tb.Fatalf("%s: %s", a.st.place, fmt.Sprintf(format, v...))
}

// word consumes the next bare word.
func (a *args) word() string {
	for i, w := range a.words {
		if !strings.Contains(w, "=") {
			a.words = slices.Delete(a.words, i, i+1)
			return w
		}
	}
	return ""
}

// has consumes a bare word and reports whether it was present.
func (a *args) has(word string) bool {
	i := slices.Index(a.words, word)
	if i >= 0 {
		a.words = slices.Delete(a.words, i, i+1)
	}
	return i >= 0
}

// text consumes the value of a key and returns it, or def.
func (a *args) text(key, def string) string {
	for i, w := range a.words {
		if v, ok := strings.CutPrefix(w, key+"="); ok {
			a.words = slices.Delete(a.words, i, i+1)
			return v
		}
	}
	return def
}

// number consumes a number, which may have a unit: 4KiB.
func (a *args) number(key string, def int) int {
	s := a.text(key, "")
	if s == "" {
		return def
	}
	return a.parse(key, s)
}

func (a *args) parse(key, s string) int {
	scale := 1
	for unit, n := range map[string]int{"KiB": 1 << 10, "MiB": 1 << 20} {
		if digits, ok := strings.CutSuffix(s, unit); ok {
			s, scale = digits, n
		}
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		a.fatalf("%s=%s is not a number", key, s)
	}
	return n * scale
}

// span consumes "first..last" or one number.
func (a *args) span(key string) (first, last int) {
	from, to, ok := strings.Cut(a.text(key, "0"), "..")
	first = a.parse(key, from)
	if !ok {
		return first, first
	}
	return first, a.parse(key, to)
}

// done fails if a word is left.
func (a *args) done() {
	if len(a.words) > 0 {
		a.fatalf("%q means nothing here", a.words)
	}
}

// transcriptStatus maps names in transcripts to statuses.
var transcriptStatus = map[string]verbs.Status{
	"success": verbs.StatusSuccess, "loc-len-err": verbs.StatusLocLenErr, "loc-prot-err": verbs.StatusLocProtErr,
	"flushed": verbs.StatusWRFlushErr, "rem-inv-req-err": verbs.StatusRemInvReqErr, "rem-access-err": verbs.StatusRemAccessErr,
	"rem-op-err": verbs.StatusRemOpErr, "retry-exc-err": verbs.StatusRetryExcErr, "rnr-retry-exc-err": verbs.StatusRNRRetryExcErr,
}

func (a *args) status() verbs.Status {
	name := a.word()
	s, ok := transcriptStatus[name]
	if !ok || s == verbs.StatusSuccess {
		a.fatalf("%q is not a status to fail with", name)
	}
	return s
}

func statusName(s verbs.Status) string {
	for name, status := range transcriptStatus {
		if status == s {
			return name
		}
	}
	return s.String()
}

// transcriptOp maps names in transcripts to opcodes.
var transcriptOp = map[string]verbs.Opcode{
	"write": verbs.OpRDMAWrite, "writeimm": verbs.OpRDMAWriteWithImm, "read": verbs.OpRDMARead, "send": verbs.OpSend,
	"sendimm": verbs.OpSendWithImm, "swap": verbs.OpAtomicCmpAndSwp, "add": verbs.OpAtomicFetchAndAdd,
}

func opName(op verbs.Opcode) string {
	for name, o := range transcriptOp {
		if o == op {
			return name
		}
	}
	return op.String()
}
