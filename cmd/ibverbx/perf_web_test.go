package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"ibverbx/internal/enginetest"
	"ibverbx/internal/monitor"
)

// watchPerf runs perf --web with additional arguments and returns the data a viewer received. It retries if the test
// finished before the viewer connected.
func watchPerf(t *testing.T, words ...string) monitor.View {
	t.Helper()
	for range 50 {
		if v, ok := watchOnce(t, words...); ok {
			return v
		}
	}
	t.Fatal("50 tests were over before their viewer came")
	return monitor.View{}
}

func watchOnce(t *testing.T, words ...string) (v monitor.View, ok bool) {
	t.Helper()
	said, say := io.Pipe()
	var out bytes.Buffer
	ended := make(chan int, 1)
	go func() {
		ended <- run(t.Context(), append([]string{"perf", "--web"}, words...), streams{in: strings.NewReader(""), out: &out, err: say, provider: providerSoftNIC})
		_ = say.Close()
	}()
	line, err := bufio.NewReader(said).ReadString('\n')
	enginetest.WantOK(t, "NewReader", err)
	go func() { _, _ = io.Copy(io.Discard, said) }()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Get(strings.Fields(line)[1] + "stream")
	if err != nil { // refused, or cut off
		t.Logf("a test ended with status %d before its viewer had an answer: %v", <-ended, err)
		return v, false
	}
	defer func() { _ = answer.Body.Close() }()
	lines := bufio.NewScanner(answer.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		var u struct {
			Sample *monitor.Sample
			Event  *monitor.Event
			Ended  string
		}
		if v.Setup.Title == "" {
			err = json.Unmarshal([]byte(data), &v)
		} else {
			err = json.Unmarshal([]byte(data), &u)
		}
		switch {
		case err != nil:
			t.Fatalf("the stream has %q: %v", data, err)
		case u.Sample != nil:
			v.Samples = append(v.Samples, *u.Sample)
		case u.Event != nil:
			v.Events = append(v.Events, *u.Event)
		case u.Ended != "":
			v.Ended = u.Ended
		}
	}
	if status := <-ended; status != exitOK || !strings.Contains(out.String(), " verdict:") {
		t.Errorf("perf --web: status %d, stdout %q, want %d and the table", status, out.String(), exitOK)
	}
	return v, true
}

// TestPerfWeb: the perf page shows every size with its rails and lanes, and the verdict. It offers no actions.
func TestPerfWeb(t *testing.T) {
	t.Parallel()
	v := watchPerf(t, "-s", "64K,1M", "-D", "0.4", "--rails", "2", "-q", "4")
	if v.Setup.Title != "ibverbx perf: RDMA_Write BW Test" || len(v.Setup.Rails) != 2 || len(v.Setup.Actions) != 0 || v.Setup.Checked {
		t.Errorf("the setup is %+v, want two rails and no actions", v.Setup)
	}
	if !strings.HasPrefix(v.Ended, "The test has ended. Verdict: ") {
		t.Errorf("it ended with %q, want the verdict", v.Ended)
	}
	var texts []string
	for _, e := range v.Events {
		texts = append(texts, e.Text)
	}
	if got := strings.Join(texts, "; "); got != "messages of 64 KiB; messages of 1 MiB" {
		t.Errorf("the events are %q, want one for each size", got)
	}
	if len(v.Samples) < 2 {
		t.Fatalf("%d samples, want at least one for each size", len(v.Samples))
	}
	for i := range v.Samples[1:] {
		a, b := &v.Samples[i], &v.Samples[i+1]
		if b.At <= a.At || b.Messages < a.Messages || b.Bytes < a.Bytes {
			t.Errorf("sample %+v follows %+v, want later times and more bytes", b, a)
		}
	}
	if !slices.ContainsFunc(v.Samples, func(s monitor.Sample) bool {
		return len(s.Lanes) == 4 && s.Rails[1].Up == 2 && s.Rails[1].Lanes == 2 && s.Rails[0].Rate > 0 && s.Rate > 0 && s.P50 == 0
	}) {
		t.Errorf("the samples are %+v, want two rails with two lanes each, at work", v.Samples)
	}
}

// TestPerfWebOthers: the page supports latency tests, raw QPs and rail loss.
func TestPerfWebOthers(t *testing.T) {
	t.Parallel()
	v := watchPerf(t, "send", "--lat", "-s", "64", "-D", "2")
	// A sample without completed messages lacks latencies.
	if !slices.ContainsFunc(v.Samples, func(s monitor.Sample) bool { return s.P50 > 0 && s.P99 >= s.P50 }) {
		t.Errorf("the samples of --lat are %+v, want latencies", v.Samples)
	}
	v = watchPerf(t, "-c", "UC", "-q", "2", "-s", "64K", "-D", "0.3")
	if last := v.Samples[len(v.Samples)-1]; len(last.Lanes) != 2 || last.Rails[0].Up != 2 {
		t.Errorf("the last sample of UC is %+v, want two QPs in service", last)
	}
	v = watchPerf(t, "--kill-rail", "1", "--at", "0.3", "--back", "0.3")
	text := ""
	for _, e := range v.Events {
		text += e.Text + "; "
	}
	if !strings.Contains(text, "rail 1 lost ") || !strings.Contains(text, "in service again") || !v.Setup.Checked {
		t.Errorf("the events of --kill-rail are %q, want that the rail was lost and is back", text)
	}
}

func TestPerfWebRefused(t *testing.T) {
	refused(t, "perf serve --web --token-file x", "--web belongs to the client")
	refused(t, "perf serve --html x --token-file x", "--html belongs to the client")
}
