package sim

import "math"

// never is a time that does not come.
const never = math.MaxInt64

// agenda is what happens at a time: a heap by time and, at one time, by the order in which
// it was added.
type agenda struct {
	items []item
	count uint64
}

// item is one entry. A nil do only makes time stop there.
type item struct {
	at    int64
	order uint64
	do    func()
}

func (i *item) before(j *item) bool { return i.at < j.at || (i.at == j.at && i.order < j.order) }

// next is the time of the first entry.
func (a *agenda) next() int64 {
	if len(a.items) == 0 {
		return never
	}
	return a.items[0].at
}

// add enters something.
func (a *agenda) add(at int64, do func()) {
	a.count++
	a.items = append(a.items, item{at: at, order: a.count, do: do})
	for i := len(a.items) - 1; i > 0; {
		parent := (i - 1) / 2
		if !a.items[i].before(&a.items[parent]) {
			return
		}
		a.items[i], a.items[parent] = a.items[parent], a.items[i]
		i = parent
	}
}

// take returns the first entry that is due.
func (a *agenda) take(now int64) (do func(), ok bool) {
	if a.next() > now {
		return nil, false
	}
	do = a.items[0].do
	last := len(a.items) - 1
	a.items[0] = a.items[last]
	a.items[last] = item{}
	a.items = a.items[:last]
	for i := 0; ; {
		child := 2*i + 1
		if child >= last {
			return do, true
		}
		if child+1 < last && a.items[child+1].before(&a.items[child]) {
			child++
		}
		if !a.items[child].before(&a.items[i]) {
			return do, true
		}
		a.items[i], a.items[child] = a.items[child], a.items[i]
		i = child
	}
}
