package sim

import (
	"ibverbx"
	"ibverbx/verbs"
)

// liar is a NIC that passes chains of sends to a function, hand, which may change them. hand posts, and
// the engine gets its result.
type liar struct {
	verbs.Context
	hand func(q *lyingQP, wrs []verbs.SendWR) (int, error)
	// extra creates a second QP for every QP, and never closes it.
	extra bool
	// immortal makes QPs ignore ERR, RESET and Close.
	immortal bool
}

func (l *liar) AllocPD() (verbs.PD, error) {
	pd, err := l.Context.AllocPD()
	return &lyingPD{PD: pd, of: l}, err
}

type lyingPD struct {
	verbs.PD
	of *liar
}

func (p *lyingPD) CreateQP(cfg verbs.QPConfig) (verbs.QP, error) {
	if p.of.extra {
		if _, err := p.PD.CreateQP(cfg); err != nil {
			return nil, err
		}
	}
	q, err := p.PD.CreateQP(cfg)
	if err != nil {
		return nil, err
	}
	return &lyingQP{QP: q, of: p.of}, nil
}

// lyingQP counts posts.
type lyingQP struct {
	verbs.QP
	of    *liar
	posts int
	kept  []verbs.SendWR
}

func (q *lyingQP) PostSend(wrs []verbs.SendWR) (int, error) {
	q.posts++
	if q.of.hand == nil {
		return q.QP.PostSend(wrs)
	}
	return q.of.hand(q, wrs)
}

// Modify ignores ERR and RESET of an immortal QP.
func (q *lyingQP) Modify(attr verbs.QPAttr, mask verbs.QPAttrMask) error {
	if q.of.immortal && mask&verbs.AttrState != 0 && (attr.State == verbs.StateErr || attr.State == verbs.StateReset) {
		return nil
	}
	return q.QP.Modify(attr, mask)
}

func (q *lyingQP) Close() error {
	if q.of.immortal {
		return nil
	}
	return q.QP.Close()
}

// lie returns a value for Options.wrap.
func lie(hand func(q *lyingQP, wrs []verbs.SendWR) (int, error)) func(verbs.Context) verbs.Context {
	return func(ctx verbs.Context) verbs.Context { return &liar{Context: ctx, hand: hand} }
}

// isData reports whether a request is a WRITE with some bytes.
func isData(wr *verbs.SendWR) bool { return wr.Opcode <= verbs.OpRDMAWriteWithImm && wr.Length() >= 8 }

// dropFragment empties one WRITE in twenty.
func dropFragment(q *lyingQP, wrs []verbs.SendWR) (int, error) {
	for i := range wrs {
		if q.posts%20 == 7 && isData(&wrs[i]) {
			wrs[i].NumSGE = 0
			break
		}
	}
	return q.QP.PostSend(wrs)
}

// swallow accepts a post and drops it.
func swallow(q *lyingQP, wrs []verbs.SendWR) (int, error) {
	if q.posts == 5 {
		return len(wrs), nil
	}
	return q.QP.PostSend(wrs)
}

// repeatLate posts a WRITE again, long after it has completed.
func repeatLate(q *lyingQP, wrs []verbs.SendWR) (int, error) {
	if q.posts == 3 && isData(&wrs[0]) && wrs[0].Flags&verbs.SendInline == 0 {
		q.kept = append(q.kept, wrs[0])
	}
	n, err := q.QP.PostSend(wrs)
	if q.posts == 12 && len(q.kept) > 0 {
		again := q.kept[0]
		again.Flags = 0
		again.Opcode = verbs.OpRDMAWrite
		_, _ = q.QP.PostSend([]verbs.SendWR{again})
	}
	return n, err
}

// recordFirst sends the record of a message before the data on the same lane.
func recordFirst(q *lyingQP, wrs []verbs.SendWR) (int, error) {
	for i := 1; i < len(wrs); i++ {
		a, b := &wrs[i-1], &wrs[i]
		if isData(a) && a.Opcode == verbs.OpRDMAWrite && b.Opcode == verbs.OpSend {
			*a, *b = *b, *a
			a.WRID, b.WRID = b.WRID, a.WRID
			flags := a.Flags & verbs.SendSignaled
			a.Flags = a.Flags&^verbs.SendSignaled | b.Flags&verbs.SendSignaled
			b.Flags = b.Flags&^verbs.SendSignaled | flags
		}
	}
	return q.QP.PostSend(wrs)
}

// twiceAtomic executes a FETCH_AND_ADD a second time.
func twiceAtomic(q *lyingQP, wrs []verbs.SendWR) (int, error) {
	for _, wr := range wrs {
		if wr.Opcode == verbs.OpAtomicFetchAndAdd && q.posts%10 == 3 {
			wr.Flags = 0
			_, _ = q.QP.PostSend([]verbs.SendWR{wr})
			break
		}
	}
	return q.QP.PostSend(wrs)
}

// skipNumber omits one of DQPLB's numbers: all later immediates are one higher.
func skipNumber(q *lyingQP, wrs []verbs.SendWR) (int, error) {
	for i := range wrs {
		if wrs[i].Opcode == verbs.OpRDMAWriteWithImm && q.posts > 5 {
			wrs[i].Imm += 1 << 24 // The number is little-endian.
		}
	}
	return q.QP.PostSend(wrs)
}

// loseRefused reports refused requests as accepted.
func loseRefused(q *lyingQP, wrs []verbs.SendWR) (int, error) {
	n, err := q.QP.PostSend(wrs)
	if n < len(wrs) && err != nil {
		return len(wrs), nil
	}
	return n, err
}

// The following functions go between the world and the engine. Every host or end has its own.

// every20th changes the 20th completion.
func every20th(change func(wcs []ibverbx.WC, i, got int) int) func(pollFunc) pollFunc {
	return func(poll pollFunc) pollFunc {
		seen := 0
		return func(dst []ibverbx.WC) (int, error) {
			got, err := poll(dst)
			for i := range got {
				if seen++; seen == 20 {
					return change(dst, i, got), err
				}
			}
			return got, err
		}
	}
}

// repeat reports a completion twice.
func repeat(wcs []ibverbx.WC, i, got int) int {
	if got == len(wcs) {
		wcs[(i+1)%got] = wcs[i]
		return got
	}
	wcs[got] = wcs[i]
	return got + 1
}

// lose drops a completion.
func lose(wcs []ibverbx.WC, i, got int) int { return i + copy(wcs[i:], wcs[i+1:got]) }

// swap exchanges a completion with the one before it.
func swap(wcs []ibverbx.WC, i, got int) int {
	if i > 0 {
		wcs[i], wcs[i-1] = wcs[i-1], wcs[i]
	}
	return got
}

// fake turns a completion into a failure.
func fake(wcs []ibverbx.WC, i, got int) int {
	wcs[i].Status = verbs.StatusWRFlushErr
	return got
}

// wrongWords changes the immediate and the length of receives.
func wrongWords(poll pollFunc) pollFunc {
	return func(dst []ibverbx.WC) (int, error) {
		got, err := poll(dst)
		for i := range dst[:got] {
			if dst[i].WRID&recvID != 0 {
				dst[i].Imm ^= 1
				dst[i].ByteLen ^= 1
			}
		}
		return got, err
	}
}

// early reports a request before it has completed.
func early(poll pollFunc) pollFunc {
	var last ibverbx.WC
	seen := 0
	return func(dst []ibverbx.WC) (int, error) {
		got, err := poll(dst)
		for _, wc := range dst[:got] {
			if wc.WRID&recvID == 0 {
				last = wc
				seen++
			}
		}
		if seen >= 10 && got == 0 && last.QP != nil {
			last.WRID++
			last.Flags = 0 // The length is not known.
			dst[0], seen = last, -1<<30
			return 1, nil
		}
		return got, err
	}
}

// hush turns failures into successes.
func hush(poll pollFunc) pollFunc {
	return func(dst []ibverbx.WC) (int, error) {
		got, err := poll(dst)
		for i := range dst[:got] {
			if dst[i].WRID&recvID == 0 {
				dst[i].Status = verbs.StatusSuccess
			}
		}
		return got, err
	}
}

// stingy never accepts more than a few requests at once.
func stingy(post postFunc) postFunc {
	return func(wrs []ibverbx.SendWR) (int, error) {
		if len(wrs) <= 8 {
			return post(wrs)
		}
		n, err := post(wrs[:8])
		if err == nil {
			err = verbs.ErrQueueFull
		}
		return n, err
	}
}
