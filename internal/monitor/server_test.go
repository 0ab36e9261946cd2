package monitor

import (
	"bufio"
	"context"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"strings"
	"testing"
	"time"
)

// serve serves a Record for the duration of the test.
func serve(t *testing.T, rec *Record, act func(int, string, bool) error) *Server {
	t.Helper()
	s, err := Listen()
	if err != nil {
		t.Fatal(err)
	}
	s.Record, s.Act = rec, act
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Serve: got %v, want no error", err)
		}
	})
	return s
}

// ask sends a request and returns the status and the body of the response.
func ask(t *testing.T, method, address, body string, change func(*http.Request)) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, address, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(r)
	}
	answer, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	if csp := answer.Header.Get("Content-Security-Policy"); !strings.HasPrefix(csp, "default-src 'none'") {
		t.Errorf("%s %s: Content-Security-Policy %q, want one that allows only what the page needs", method, address, csp)
	}
	return answer.StatusCode, string(text)
}

// TestServerGuards: a request is served only with the secret, the right host, and not from a page
// of another origin.
func TestServerGuards(t *testing.T) {
	acted := 0
	s := serve(t, NewRecord(Setup{}), func(int, string, bool) error { acted++; return nil })
	const pull = `{"rail":1,"action":"pulled","on":true}`
	own := strings.TrimSuffix(s.Address(), "/"+s.secret+"/")
	header := func(name, value string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set(name, value) }
	}
	for _, tt := range []struct {
		name, method, path, body string
		change                   func(*http.Request)
		want                     int
	}{
		{"the page", "GET", s.Address(), "", nil, http.StatusOK},
		{"its script", "GET", s.Address() + "page.js", "", nil, http.StatusOK},
		{"an action", "POST", s.Address() + "act", pull, nil, http.StatusNoContent},
		{"an action of the page", "POST", s.Address() + "act", pull, header("Origin", own), http.StatusNoContent},
		{"no secret", "GET", own + "/", "", nil, http.StatusNotFound},
		{"another secret", "GET", own + "/" + strings.Repeat("A", len(s.secret)) + "/", "", nil, http.StatusNotFound},
		{"an action without the secret", "POST", own + "/act", pull, nil, http.StatusNotFound},
		{"an action as GET", "GET", s.Address() + "act", "", nil, http.StatusNotFound},
		{"another host", "GET", s.Address(), "", func(r *http.Request) { r.Host = "attacker.example" }, http.StatusForbidden},
		{"another origin", "POST", s.Address() + "act", pull, header("Origin", "http://attacker.example"), http.StatusForbidden},
		{"an opaque origin", "POST", s.Address() + "act", pull, header("Origin", "null"), http.StatusForbidden},
		{"another site", "GET", s.Address() + "stream", "", header("Sec-Fetch-Site", "cross-site"), http.StatusForbidden},
		{"another port of this host", "GET", s.Address() + "stream", "", header("Sec-Fetch-Site", "same-site"), http.StatusForbidden},
		{"no JSON", "POST", s.Address() + "act", "pull", nil, http.StatusBadRequest},
		{"an unknown field", "POST", s.Address() + "act", `{"rail":1,"force":true}`, nil, http.StatusBadRequest},
		{"two commands", "POST", s.Address() + "act", pull + pull, nil, http.StatusBadRequest},
		{"a long command", "POST", s.Address() + "act", `{"action":"` + strings.Repeat("x", maxCommand) + `"}`, nil, http.StatusBadRequest},
	} {
		before := acted
		status, text := ask(t, tt.method, tt.path, tt.body, tt.change)
		if status != tt.want || (acted > before) != (tt.want == http.StatusNoContent) {
			t.Errorf("%s: status %d, %q, %d actions, want status %d", tt.name, status, text, acted-before, tt.want)
		}
	}
}

// TestServerAct: an action reaches Act, and its error reaches the viewer.
func TestServerAct(t *testing.T) {
	s := serve(t, NewRecord(Setup{}), func(rail int, action string, on bool) error {
		if rail != 1 || action != "slow" || !on {
			t.Errorf("Act(%d, %q, %t), want Act(1, slow, true)", rail, action, on)
		}
		return errors.New("no such luck")
	})
	if status, text := ask(t, "POST", s.Address()+"act", `{"rail":1,"action":"slow","on":true}`, nil); status != http.StatusBadRequest || text != "no such luck\n" {
		t.Errorf("act: status %d, %q, want %d and the error", status, text, http.StatusBadRequest)
	}
	s = serve(t, NewRecord(Setup{}), nil)
	if status, _ := ask(t, "POST", s.Address()+"act", `{}`, nil); status != http.StatusNotFound {
		t.Errorf("act without Act: status %d, want %d", status, http.StatusNotFound)
	}
}

// TestServerStream: a viewer receives the state, then updates, then the final message.
func TestServerStream(t *testing.T) {
	rec := NewRecord(Setup{Title: "a title"})
	for range viewSamples + 10 {
		rec.Sample(Sample{At: 1})
	}
	s := serve(t, rec, nil)
	client := &http.Client{Timeout: time.Minute}
	defer client.CloseIdleConnections()
	answer, err := client.Get(s.Address() + "stream")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	lines := bufio.NewScanner(answer.Body)
	lines.Buffer(nil, 1<<20)
	next := func() string {
		text := ""
		for lines.Scan() && lines.Text() != "" {
			text += lines.Text() + "\n"
		}
		return text
	}
	if got := next(); !strings.HasPrefix(got, "event: view\ndata: {") || !strings.Contains(got, "a title") || strings.Count(got, `"at":1`) != viewSamples {
		t.Errorf("first came %.200q, want the setup and %d samples", got, viewSamples)
	}
	rec.Event(Event{Text: "one\nline"})
	if got := next(); got != `event: update`+"\n"+`data: {"event":{"at":0,"rail":0,"bad":false,"text":"one\nline"}}`+"\n" {
		t.Errorf("then came %q, want the event", got)
	}
	rec.End("done")
	if got := next(); !strings.Contains(got, `"ended":"done"`) {
		t.Errorf("then came %q, want the end", got)
	}
	if got := next(); got != "" || lines.Err() != nil {
		t.Errorf("after the end came %q and %v, want nothing", got, lines.Err())
	}
}

// TestPageIsSelfContained: the page does not refer to other hosts and never sets text as HTML.
func TestPageIsSelfContained(t *testing.T) {
	err := fs.WalkDir(pageFiles, "page", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := fs.ReadFile(pageFiles, name)
		for _, bad := range []string{"http:", "https:", "//cdn", "innerHTML", "insertAdjacentHTML", "document.write", "eval("} {
			if strings.Contains(string(b), bad) {
				t.Errorf("%s has %q", name, bad)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// FuzzCommand: a command from a browser is decoded or rejected.
func FuzzCommand(f *testing.F) {
	for _, s := range []string{`{"rail":1,"action":"pulled","on":true}`, `{}`, `{"rail":-1}`, `{"rail":1e9}`, `{}{}`, `[]`, `{"x":1}`, ``} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		c, err := decodeCommand(strings.NewReader(text))
		if err == nil && !strings.Contains(text, "{") && strings.TrimSpace(text) != "null" {
			t.Errorf("decodeCommand(%q) = %+v, want an error", text, c)
		}
	})
}
