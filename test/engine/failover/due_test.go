package failover_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// TestRecoveryTime kills a lane under load on a path with a round-trip time of 20 us. The lane is in service
// again within a millisecond. (With a silent peer, the NIC's retry time is added: 2^timeout * 4.096 us *
// (retries + 1).)
func TestRecoveryTime(t *testing.T) {
	enginetest.ForEachScheme(t, func(t *testing.T, scheme ibverbx.Scheme) {
		d := newDuo(t, 2, ibverbx.Config{Scheme: scheme, Lanes: 4, FragmentSize: 4096})
		for i, l := range d.links {
			a, b := d.hosts[0].NICs[i], d.hosts[1].NICs[i]
			enginetest.Must(t, l.Impair(a, b, softnic.Impairment{Delay: 10 * time.Microsecond}))
			enginetest.Must(t, l.Impair(b, a, softnic.Impairment{Delay: 10 * time.Microsecond}))
		}
		const messages, size = 200, 16 << 10
		local, remote := d.hosts[0].Region(messages*size), d.hosts[1].Region(messages*size)
		enginetest.Fill(local.Bytes(), 7)
		posted := 0
		for lane := range 4 {
			d.until("some progress", func() bool {
				if posted < messages && posted-len(d.got[0]) < 8 {
					d.post(posted, 1, size, local, remote)
					posted++
				}
				return len(d.got[0]) >= lane*30+10
			})
			d.kill(lane&1, lane)
			died := d.now
			d.until("the lane is down", func() bool { return d.hosts[lane&1].QP.Stats().Lanes[lane].Deaths == 1 })
			for !d.allUp() {
				if posted < messages && posted-len(d.got[0]) < 8 {
					d.post(posted, 1, size, local, remote) // the polls are never empty for long
					posted++
				}
				d.step()
			}
			if took := time.Duration(d.now - died); took >= time.Millisecond {
				t.Errorf("lane %d was out of service for %v, want less than 1 ms", lane, took)
			}
		}
		d.post(posted, messages-posted, size, local, remote)
		d.until("all are done", func() bool { return len(d.got[0]) == messages && len(d.got[1]) == messages })
		d.check(messages, local, remote)
	})
}

// TestBusyPollHearsControl: a program's polls are never empty. The engine still handles control messages and
// failed lanes, by the clock.
func TestBusyPollHearsControl(t *testing.T) {
	d := newDuo(t, 1, ibverbx.Config{Lanes: 2})
	local, remote := d.hosts[0].Region(8), d.hosts[1].Region(8)
	wr := ibverbx.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, Remote: remote.Remote()}
	wr.SetSGE(local.SGE(0, 8))
	var one [1]ibverbx.WC
	for range 100 { // until the periodic checks have just run
		d.step()
	}
	d.kill(1, 1) // at the other host: this one is notified by a control message
	for d.hosts[1].QP.Stats().Lanes[1].State == "up" || d.hosts[1].QP.Stats().Lanes[1].State == "dying" {
		_, err := d.hosts[1].CQ.Poll(one[:])
		enginetest.Must(t, err)
		d.now += 1000
	}
	_, err := d.hosts[0].QP.PostSend([]ibverbx.SendWR{wr})
	enginetest.Must(t, err)
	for range 2 {
		d.now += int64(100 * time.Microsecond)
		for _, l := range d.links {
			l.Step()
		}
	}
	if n, err := d.hosts[0].CQ.Poll(one[:]); n != 1 || err != nil {
		t.Fatalf("Poll = %d, %v, want a completion", n, err)
	}
	if state := d.hosts[0].QP.Stats().Lanes[1].State; state == "up" {
		t.Error("a poll that found a completion 200 us after the last did not look at the control channel")
	}
	d.until("the lane is back", d.allUp)
}

// TestDue: Due returns the time when a VirtualCQ must be polled even without completions.
func TestDue(t *testing.T) {
	d := newDuo(t, 1, ibverbx.Config{Lanes: 2, Deadline: 5 * time.Second})
	for range 10 {
		d.step()
	}
	if due := d.hosts[0].CQ.Due(); due != math.MaxInt64 {
		t.Errorf("Due of a connection at rest = %d, want never", due)
	}
	local, remote := d.hosts[0].Region(8), d.hosts[1].Region(8)
	d.post(0, 1, 8, local, remote)
	if due, want := d.hosts[0].CQ.Due(), d.now+int64(500*time.Millisecond); due > want || due <= d.now {
		t.Errorf("Due with a request posted = %d, want when the peer is asked, %d", due, want)
	}
	d.kill(0, 0)
	for _, h := range d.hosts[:1] {
		var wcs [4]ibverbx.WC
		_, err := h.CQ.Poll(wcs[:])
		enginetest.Must(t, err)
	}
	if due := d.hosts[0].CQ.Due(); due > d.now+int64(2*time.Millisecond) {
		t.Errorf("Due while a lane is out of service = %d, want soon after %d", due, d.now)
	}
	d.until("all is well again", d.allUp)

	free := enginetest.NewHost(t, []softnic.Link{softnic.NewMemoryLink(nil)}, ibverbx.Config{})
	if due := free.CQ.Due(); due != math.MaxInt64 {
		t.Errorf("Due without a Control = %d, want never", due)
	}
}

// TestDueRefused: a NIC does not report a completion for a refused request, so the VirtualCQ must be polled
// immediately.
func TestDueRefused(t *testing.T) {
	x := enginetest.NewFreeScriptedQP(t, ibverbx.Config{Lanes: 2, FragmentSize: 4096})
	x.NIC.QPs()[0].RefuseAt(0, verbs.ErrQueueFull)
	x.PostSend(x.Request(1, verbs.OpRDMAWrite, 64<<10))
	if due := x.CQ.Due(); due == math.MaxInt64 {
		t.Error("Due with a request that a NIC has refused = never, want now")
	}
	x.Settle()
	if due := x.CQ.Due(); due != math.MaxInt64 {
		t.Errorf("Due with nothing outstanding = %d, want never", due)
	}
}

// TestDeadlineNever: a Deadline beyond the range of the clock never expires.
func TestDeadlineNever(t *testing.T) {
	d := newDuo(t, 1, ibverbx.Config{Lanes: 2, Deadline: math.MaxInt64})
	local, remote := d.hosts[0].Region(8), d.hosts[1].Region(8)
	a, b := d.hosts[0].NICs[0], d.hosts[1].NICs[0]
	d.links[0].Cut(a, b)
	d.post(0, 1, 8, local, remote)
	if due, want := d.hosts[0].CQ.Due(), d.now+int64(500*time.Millisecond); due <= d.now || due > want {
		t.Errorf("Due with a request without a deadline = %d, want when the peer is asked, %d", due, want)
	}
	for range 10 {
		d.step()
	}
	if err := d.hosts[0].QP.Err(); err != nil {
		t.Errorf("Err = %v, want none", err)
	}
	d.links[0].Restore(a, b)
	d.until("it ended", func() bool { return len(d.got[0]) == 1 })
}

// TestEventsAndLog loses a rail: the events arrive in order with their causes, Stats matches, and the log has
// a record for each state of the connection.
func TestEventsAndLog(t *testing.T) {
	var text bytes.Buffer
	log := slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{Level: slog.LevelInfo}))
	d := newDuo(t, 2, ibverbx.Config{Lanes: 4, Log: log})
	d.kill(0, 1)
	d.until("lane 1 is noticed", func() bool { return d.hosts[0].QP.Stats().Out == 1 })
	s := d.hosts[0].QP.Stats()
	if l := s.Lanes[1]; l.Cause == nil || l.State == "up" {
		t.Errorf("lane 1 in Stats is %+v, want it out of service with a cause", l)
	}
	b, err := json.Marshal(s) // for expvar
	enginetest.Must(t, err)
	var read struct {
		Lanes []struct{ Role, State, Cause string }
	}
	enginetest.Must(t, json.Unmarshal(b, &read))
	if l := read.Lanes[1]; l.Role != "data" || l.State != s.Lanes[1].State || l.Cause != s.Lanes[1].Cause.Error() || read.Lanes[0].Cause != "" {
		t.Errorf("lanes are %+v in JSON, want lane 1 with the cause %q", read.Lanes, s.Lanes[1].Cause)
	}
	if up := s.Rails[1].Up; up != 1 {
		t.Errorf("rail 1 has %d data lanes in service, want 1", up)
	}
	d.kill(0, 3)
	d.until("all lanes are back", d.allUp)
	var events [16]ibverbx.Event
	var got []string
	for _, e := range events[:d.hosts[0].CQ.Events(events[:])] {
		got = append(got, e.Kind.String())
		if (e.Kind == ibverbx.EventLaneDown || e.Kind == ibverbx.EventDegraded) && e.Err == nil {
			t.Errorf("event %v has no cause", e.Kind)
		}
	}
	joined := strings.Join(got, ", ")
	if !strings.HasPrefix(joined, "lane down, degraded") || !strings.HasSuffix(joined, "lane up, recovered") || strings.Count(joined, "degraded") != 1 {
		t.Errorf("events are: %s", joined)
	}
	down, up := `WARN "rail down" rail=1`, `INFO "rail up" rail=1`
	if got, want := records(&text), []string{down, down, up, up}; !slices.Equal(got, want) { // of two hosts
		t.Errorf("the log has %q, want %q:\n%s", got, want, &text)
	}
	for _, want := range []string{" device=", " cause=", " outage=", " failover="} {
		if strings.Count(text.String(), want) == 0 {
			t.Errorf("the log lacks%s:\n%s", want, &text)
		}
	}
	if r := d.hosts[0].QP.Stats().Rails[1]; r.Lost != 1 || r.Recovered != 1 || r.Down != 0 {
		t.Errorf("rail 1 was lost %d times, recovered %d times, down is %d, want 1, 1 and 0", r.Lost, r.Recovered, r.Down)
	}
}

// records returns level, message and rail of all records.
func records(text *bytes.Buffer) (list []string) {
	for _, m := range regexp.MustCompile(`level=(\S+) msg=("[^"]*"|\S+) .*(rail=\d)`).FindAllStringSubmatch(text.String(), -1) {
		list = append(list, strings.Join(m[1:], " "))
	}
	return list
}

// TestLogOfLane: a lane is lost while its rail has another one. The log has one record for the loss, even if the lane is back before the
// engine writes it, and one for the recovery. The rail is not lost.
func TestLogOfLane(t *testing.T) {
	for _, out := range []time.Duration{0, time.Second} {
		var text bytes.Buffer
		log := slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{Level: slog.LevelInfo}))
		d := newDuo(t, 2, ibverbx.Config{Lanes: 4, Log: log})
		d.kill(0, 1)
		d.until("the lane is out", func() bool { return !d.allUp() })
		end := d.now + int64(out)
		d.until("the outage is over", func() bool {
			if out > 0 {
				d.kill(0, 1) // while it is rebuilt
			}
			return d.now >= end
		})
		lost := []string{"WARN degraded rail=1", "WARN degraded rail=1"} // of two hosts
		if got := records(&text); out > 0 && !slices.Equal(got, lost) {
			t.Errorf("the log has %q while the lane is out, want %q:\n%s", got, lost, &text)
		}
		d.until("all lanes are back", d.allUp)
		back := append(lost, "INFO recovered rail=1", "INFO recovered rail=1")
		got := records(&text)
		if slices.SortStableFunc(got, func(a, b string) int { return -strings.Compare(a, b) }); !slices.Equal(got, back) {
			t.Errorf("the log has %q, want %q:\n%s", got, back, &text)
		}
		if r := d.hosts[0].QP.Stats().Rails[1]; r.Lost != 0 {
			t.Errorf("rail 1 was lost %d times, want 0", r.Lost)
		}
	}
}

// TestStallLogsConnectionOnly: the peer is cut off until every lane is lost, and returns. The log contains
// the states of the connection and of the rails, but no lanes.
func TestStallLogsConnectionOnly(t *testing.T) {
	var text bytes.Buffer
	log := slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{Level: slog.LevelInfo}))
	d := newDuo(t, 2, ibverbx.Config{Lanes: 8, FragmentSize: 8, Log: log})
	local, remote := d.hosts[0].Region(256), d.hosts[1].Region(256)
	for i, l := range d.links {
		l.Cut(d.hosts[0].NICs[i], d.hosts[1].NICs[i])
	}
	d.post(0, 4, 64, local, remote)
	d.until("all data lanes are lost", func() bool { return d.hosts[0].QP.Stats().Out >= 8 })
	for i, l := range d.links {
		l.Restore(d.hosts[0].NICs[i], d.hosts[1].NICs[i])
	}
	d.until("all lanes are back", func() bool { return d.allUp() && len(d.got[0]) == 4 })
	got := map[string]int{}
	for line := range strings.Lines(text.String()) {
		_, msg, _ := strings.Cut(line, "msg=")
		msg, _, _ = strings.Cut(msg, " vqp=")
		got[msg]++
	}
	want := map[string]int{`"rail down"`: 4, `"rail up"`: 4} // of two hosts
	if !maps.Equal(got, want) {
		t.Errorf("the log has %v, want %v:\n%s", got, want, &text)
	}
}
