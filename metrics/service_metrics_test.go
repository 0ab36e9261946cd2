package metrics_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ibverbx/bootstrap"
	"ibverbx/files"
	"ibverbx/internal/enginetest"
	"ibverbx/internal/enginetest/nodetest"
	"ibverbx/metrics"
	"ibverbx/softnic"
	"ibverbx/transfer"
)

// server is a Node with Engines.
type server struct {
	*nodetest.Host
	memory *transfer.Engine
	files  *files.Engine
}

func serve(t *testing.T, links []softnic.Link, exports ...files.ExportConfig) *server {
	t.Helper()
	s := &server{Host: (&nodetest.Host{Links: links}).Start(t, nil)}
	var err error
	s.memory, err = transfer.New(transfer.Config{Node: s.Node})
	enginetest.Must(t, err)
	s.files, err = files.New(files.Config{Transfer: s.memory, Exports: exports})
	enginetest.Must(t, err)
	t.Cleanup(func() {
		enginetest.Must(t, s.files.Close(enginetest.Soon(t)))
		enginetest.Must(t, s.memory.Close(enginetest.Soon(t)))
	})
	return s
}

// A Node reports its NICs, peers, sessions and rails, and its Engines their transfers and files. A lost and a recovered rail show. The
// counters of a departed peer are kept.
func TestScrapeHasNode(t *testing.T) {
	links := enginetest.MemoryLinks(2)
	dir, size := t.TempDir(), 3<<20
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(i / 3)
	}
	enginetest.Must(t, os.WriteFile(filepath.Join(dir, "f"), b, 0o600))
	owner := serve(t, links, files.ExportConfig{Name: "d", Path: dir, DefaultAccess: files.Read})
	client := serve(t, links)
	c := metrics.NewCollector()
	removes := []func(){c.AddNode(owner.Node), c.AddEngine(owner.memory), c.AddFiles(owner.files)}
	p, err := client.files.Peer(enginetest.Soon(t), owner.Addr().String())
	enginetest.Must(t, err)
	get := func() {
		t.Helper()
		enginetest.Must(t, p.Get("d/f", t.TempDir(), files.TransferConfig{}).Wait(enginetest.Soon(t)))
	}
	until := func(series string, want float64) {
		t.Helper()
		enginetest.Eventually(t, series, func() bool { return scrape(t, c)[series] == want })
	}
	rail := func(name string) string {
		return fmt.Sprintf(`ibverbx_rail_%s{device=%q,rail="1",session="127.0.0.1"}`, name, owner.NICs[1].Name())
	}
	get()
	until(`ibverbx_files_total{direction="out"}`, 1)
	wantValues(t, scrape(t, c), map[string]float64{
		rail("sessions_down"): 0, rail("losses_total"): 0, rail("lanes_up"): 1,
		`ibverbx_peers{session="127.0.0.1",state="ready"}`: 1,
		`ibverbx_peers{session="127.0.0.1",state="lost"}`:  0,
		`ibverbx_sessions{session="127.0.0.1"}`:            1,
		`ibverbx_session_lanes_out{session="127.0.0.1"}`:   0,
		`ibverbx_peer_sessions_total{session="127.0.0.1"}`: 1,
		`ibverbx_peer_losses_total{session="127.0.0.1"}`:   0,
		`ibverbx_file_bytes_total{direction="out"}`:        float64(size),
		`ibverbx_transfer_bytes_total{}`:                   float64(size),
		`ibverbx_label_overflow{label="session"}`:          0,
	})
	owner.NICs[1].SetPort(false)
	until(rail("sessions_down"), 1)
	get()
	owner.NICs[1].SetPort(true)
	until(rail("recoveries_total"), 1)
	get()
	until(`ibverbx_files_total{direction="out"}`, 3)
	after := map[string]float64{
		rail("losses_total"):                        1,
		`ibverbx_file_bytes_total{direction="out"}`: float64(3 * size),
		`ibverbx_transfer_bytes_total{}`:            float64(3 * size),
	}
	wantValues(t, scrape(t, c), after)
	enginetest.Must(t, client.Close())
	until(`ibverbx_peer_closed_total{session="127.0.0.1"}`, 1)
	after[`ibverbx_peer_losses_total{session="127.0.0.1"}`] = 0
	after[`ibverbx_sessions{session="127.0.0.1"}`] = 0
	after[rail("sessions_down")] = 0
	wantValues(t, scrape(t, c), after)
	for _, remove := range removes {
		remove()
		remove()
	}
	rest := scrape(t, c)
	wantValues(t, rest, map[string]float64{rail("losses_total"): 1, `ibverbx_transfer_bytes_total{}`: float64(3 * size)})
	for name := range rest {
		if strings.HasPrefix(name, "ibverbx_peers{") {
			t.Errorf("a Node that was removed has the gauge %s, want its counters only", name)
		}
	}
}

// listenerOf is a Listener without peers.
type listenerOf int

func (listenerOf) Stats() (s bootstrap.ListenerStats) { return s }

// A gauge reports that a label has too many values.
func TestLabelOverflow(t *testing.T) {
	c := metrics.NewCollector()
	const series = `ibverbx_label_overflow{label="listener"}`
	for i := range 257 {
		if got := scrape(t, c)[series]; got != 0 {
			t.Fatalf("%s = %v after %d names, want 0", series, got, i)
		}
		c.AddListener(fmt.Sprint(i), listenerOf(i))
		scrape(t, c)
	}
	if got := scrape(t, c)[series]; got != 1 {
		t.Errorf("%s = %v after 257 names, want 1", series, got)
	}
}
