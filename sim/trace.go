package sim

import (
	"bufio"
	"fmt"
	"io"
	"strconv"

	"ibverbx"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// tracer writes one line of JSON for every event. A nil tracer writes nothing. No line contains an
// address, a key or the wall clock, so the same plan gives the same bytes.
type tracer struct {
	w   *bufio.Writer
	buf []byte
}

func newTracer(w io.Writer) *tracer { return &tracer{w: bufio.NewWriterSize(w, 64<<10)} }

func (t *tracer) flush() error {
	if t == nil {
		return nil
	}
	return t.w.Flush()
}

// line writes an event with pairs of a key and a number, a string or a fmt.Stringer. The writer
// keeps an error until flush.
func (t *tracer) line(now int64, event string, pairs ...any) {
	t.buf = fmt.Appendf(t.buf[:0], `{"t":%d,"event":%q`, now, event)
	for i := 0; i < len(pairs); i += 2 {
		t.buf = fmt.Appendf(t.buf, `,"%s":`, pairs[i])
		switch v := pairs[i+1].(type) {
		case fmt.Stringer:
			t.buf = strconv.AppendQuote(t.buf, v.String())
		case string:
			t.buf = strconv.AppendQuote(t.buf, v)
		default:
			t.buf = fmt.Append(t.buf, v)
		}
	}
	t.buf = append(t.buf, "}\n"...)
	_, _ = t.w.Write(t.buf)
}

func (t *tracer) post(e *end, r *request) {
	if t != nil {
		t.line(e.w.now, "post", "end", e.name, "id", r.id, "op", r.wr.Opcode, "flags", r.wr.Flags, "bytes", r.length)
	}
}

func (t *tracer) completion(e *end, wc *ibverbx.WC) {
	if t == nil {
		return
	}
	kind, id := "id", wc.WRID
	if id&recvID != 0 {
		kind, id = "receive", id&^(recvID|dataID)
	}
	pairs := []any{"end", e.name, kind, id, "status", wc.Status}
	if wc.Status == verbs.StatusSuccess {
		pairs = append(pairs, "op", wc.Opcode, "bytes", wc.ByteLen)
	}
	t.line(e.w.now, "completion", pairs...)
}

func (t *tracer) event(e *end, ev *ibverbx.Event) {
	if t != nil {
		t.line(e.w.now, "engine", "end", e.name, "kind", ev.Kind, "lane", ev.Lane, "rail", ev.Rail)
	}
}

func (t *tracer) fault(now int64, f *Fault) {
	if t != nil {
		t.line(now, "fault", "fault", f)
	}
}

func (t *tracer) touch(h *host, off int, x *softnic.MemoryAccess) {
	if t != nil {
		t.line(x.At, "touch", "nic", x.NIC.Name(), "kind", x.Kind, "host", h.index, "at", off, "bytes", x.Length)
	}
}
