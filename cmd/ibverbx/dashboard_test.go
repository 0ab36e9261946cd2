package main

import (
	"bytes"
	"encoding/json"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ibverbx/internal/enginetest"
)

// docs returns the path of a documentation file.
func docs(name string) string { return filepath.Join("..", "..", "docs", name) }

// TestAlerts: the alerts in docs/alerts.yml are valid and fire when they should.
func TestAlerts(t *testing.T) {
	promtool := tool(t, "promtool")
	for _, args := range [][]string{{"check", "rules", docs("alerts.yml")}, {"test", "rules", docs("alerts_test.yml")}} {
		if out, err := exec.CommandContext(t.Context(), promtool, args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %v: %v\n%s", args, err, out)
		}
	}
}

// queries returns the queries of all panels in docs/grafana.json, with variables substituted.
func queries(t *testing.T) (list []string) {
	t.Helper()
	b, err := os.ReadFile(docs("grafana.json"))
	enginetest.WantOK(t, "ReadFile", err)
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	enginetest.WantOK(t, "Unmarshal", json.Unmarshal(b, &dashboard))
	for _, p := range dashboard.Panels {
		if len(p.Targets) == 0 {
			t.Errorf("the panel %q has no query", p.Title)
		}
		for _, q := range p.Targets {
			list = append(list, strings.NewReplacer("$__rate_interval", "10s", "$instance", ".*").Replace(q.Expr))
		}
	}
	if len(list) < 10 {
		t.Errorf("%d queries, want at least 10", len(list))
	}
	return list
}

// watch starts a Prometheus with the alerts of docs/alerts.yml that scrapes target, and returns its URL.
func watch(t *testing.T, target string) string {
	t.Helper()
	program, dir := tool(t, "prometheus"), t.TempDir()
	rules, err := filepath.Abs(docs("alerts.yml"))
	enginetest.WantOK(t, "Abs", err)
	config, err := json.Marshal(map[string]any{ // JSON is valid YAML
		"global":     map[string]string{"scrape_interval": "200ms", "evaluation_interval": "200ms"},
		"rule_files": []string{rules},
		"scrape_configs": []any{map[string]any{
			"job_name": "ibverbx", "static_configs": []any{map[string]any{"targets": []string{target}}},
		}},
	})
	enginetest.WantOK(t, "Marshal", err)
	enginetest.WantOK(t, "WriteFile", os.WriteFile(filepath.Join(dir, "prometheus.yml"), config, 0o600))
	l, err := net.Listen("tcp", "127.0.0.1:0") // picks a free port
	enginetest.WantOK(t, "Listen", err)
	addr := l.Addr().String()
	_ = l.Close()
	cmd := exec.CommandContext(t.Context(), program, "--config.file="+filepath.Join(dir, "prometheus.yml"),
		"--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+addr)
	var said bytes.Buffer
	cmd.Stderr = &said
	enginetest.WantOK(t, "Start", cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("prometheus said\n%s", said.Bytes())
		}
	})
	return "http://" + addr
}

// ask returns the finite values of a query, empty while Prometheus starts.
func ask(t *testing.T, at, query string) (values []string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, at+"/api/v1/query?query="+url.QueryEscape(query), nil)
	if err != nil {
		t.Fatalf("%s: got %v, want no error", query, err)
	}
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode == http.StatusServiceUnavailable {
		return nil
	}
	var found struct {
		Error string
		Data  struct{ Result []struct{ Value [2]any } }
	}
	if err := json.NewDecoder(answer.Body).Decode(&found); err != nil || found.Error != "" {
		t.Fatalf("%s: got %v, %s, want values", query, err, found.Error)
	}
	for _, r := range found.Data.Result {
		if v, ok := r.Value[1].(string); ok && v != "NaN" && !strings.Contains(v, "Inf") {
			values = append(values, v)
		}
	}
	return values
}

// TestDashboardHasData: every panel query returns data while a real Prometheus scrapes a server with a client, and the
// alerts can be evaluated. The client starts after Prometheus has found the server, which takes seconds.
func TestDashboardHasData(t *testing.T) {
	tool(t, "prometheus")
	t.Parallel()
	token := newToken(t, "a secret of this test, long enough")
	p := begin(t, "perf", "serve", "--listen", "127.0.0.1:0", "--token-file", token, "--metrics", "127.0.0.1:0")
	target := p.metricsAt()
	server, addr := served(t, p)
	at := watch(t, strings.TrimSuffix(strings.TrimPrefix(target, "http://"), "/metrics"))
	limit := time.Now().Add(3 * time.Minute)
	until := func(query string) {
		t.Helper()
		for len(ask(t, at, query)) == 0 {
			if time.Now().After(limit) {
				t.Fatalf("in 3 minutes there was no data for %s", query)
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
	until("up == 1")
	client := begin(t, "perf", "write", addr, "--token-file", token, "-b", "--link", "udp", "--transport", "uc", "-s", "64K", "-D", "600", "-t", "4")
	t.Cleanup(func() { _ = client.cmd.Process.Kill(); client.end() })
	for _, query := range queries(t) {
		until(query)
	}
	_, rules := fetch(t, at+"/api/v1/rules")
	if bytes.Contains(rules, []byte(`"health":"err"`)) || !bytes.Contains(rules, []byte(`"health":"ok"`)) {
		t.Errorf("the alerts cannot be evaluated:\n%s", rules)
	}
	_ = client.cmd.Process.Kill()
	server.line("client 127.0.0.1")
	if status := server.interrupt(); status != exitOK {
		t.Errorf("the server ended with status %d, want %d", status, exitOK)
	}
}
