package sim

import (
	"bufio"
	"io"
	"strconv"

	"ibverbx"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// tracer writes one line of JSON for everything that happens. A nil tracer writes nothing.
// Nothing in a line depends on an address, a key or the wall clock: the same plan gives the
// same bytes.
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

func (t *tracer) begin(now int64, what string) {
	t.buf = append(t.buf[:0], `{"t":`...)
	t.buf = strconv.AppendInt(t.buf, now, 10)
	t.text("event", what)
}

func (t *tracer) text(key, v string) {
	t.buf = append(t.buf, `,"`...)
	t.buf = append(t.buf, key...)
	t.buf = append(t.buf, `":`...)
	t.buf = strconv.AppendQuote(t.buf, v)
}

func (t *tracer) number(key string, v int64) {
	t.buf = append(t.buf, `,"`...)
	t.buf = append(t.buf, key...)
	t.buf = append(t.buf, `":`...)
	t.buf = strconv.AppendInt(t.buf, v, 10)
}

// end writes the line. An error is kept by the writer and comes back from flush.
func (t *tracer) end() {
	t.buf = append(t.buf, "}\n"...)
	_, _ = t.w.Write(t.buf)
}

func (t *tracer) post(e *end, r *request) {
	if t == nil {
		return
	}
	t.begin(e.w.now, "post")
	t.text("end", e.name)
	t.number("id", int64(r.id))
	t.text("op", r.wr.Opcode.String())
	t.text("flags", r.wr.Flags.String())
	t.number("bytes", int64(r.length))
	t.end()
}

func (t *tracer) completion(e *end, wc *ibverbx.WC) {
	if t == nil {
		return
	}
	t.begin(e.w.now, "completion")
	t.text("end", e.name)
	if wc.WRID&recvID != 0 {
		t.number("receive", int64(wc.WRID&^(recvID|dataID)))
	} else {
		t.number("id", int64(wc.WRID))
	}
	t.text("status", wc.Status.String())
	if wc.Status == verbs.StatusSuccess {
		t.text("op", wc.Opcode.String())
		t.number("bytes", int64(wc.ByteLen))
	}
	t.end()
}

func (t *tracer) event(e *end, ev *ibverbx.Event) {
	if t == nil {
		return
	}
	t.begin(e.w.now, "engine")
	t.text("end", e.name)
	t.text("kind", ev.Kind.String())
	t.number("lane", int64(ev.Lane))
	t.number("rail", int64(ev.Rail))
	t.end()
}

func (t *tracer) fault(now int64, f *Fault) {
	if t == nil {
		return
	}
	t.begin(now, "fault")
	t.text("fault", f.String())
	t.end()
}

func (t *tracer) touch(h *host, off int, x *softnic.Touch) {
	if t == nil {
		return
	}
	t.begin(x.At, "touch")
	t.text("nic", x.NIC.Name())
	t.text("kind", x.Kind.String())
	t.number("host", int64(h.index))
	t.number("at", int64(off))
	t.number("bytes", int64(x.Length))
	t.end()
}
