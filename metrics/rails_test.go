package metrics_test

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"ibverbx/files"
	"ibverbx/internal/enginetest"
	"ibverbx/internal/enginetest/nodetest"
	"ibverbx/metrics"
	"ibverbx/node"
	"ibverbx/softnic"
	"ibverbx/stream"
	"ibverbx/transfer"
)

// journal is a log that several goroutines write to.
type journal struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (j *journal) Write(b []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.b.Write(b)
}

// rails returns level and message of the records about rails and lanes.
func (j *journal) rails() (list []string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, m := range regexp.MustCompile(`level=(\S+) msg="?(rail down|rail up|degraded|recovered)`).FindAllStringSubmatch(j.b.String(), -1) {
		list = append(list, m[1]+" "+m[2])
	}
	return list
}

// logged starts a Node with a log.
func logged(t *testing.T, links []softnic.Link, j *journal) *nodetest.Host {
	t.Helper()
	return (&nodetest.Host{Links: links}).Start(t, func(c *node.Config) { c.Log = slog.New(slog.NewTextHandler(j, nil)) })
}

// engineOf returns an Engine of a Node, closed at the end of the test.
func engineOf(t *testing.T, n *node.Node) *transfer.Engine {
	t.Helper()
	e, err := transfer.New(transfer.Config{Node: n})
	enginetest.Must(t, err)
	t.Cleanup(func() { enginetest.Must(t, e.Close(enginetest.Soon(t))) })
	return e
}

// users returns functions that move want from there to here, or back, and return what has arrived, by the package that moves it.
func users(t *testing.T, here, there *node.Node, want []byte) map[string]func() []byte {
	t.Helper()
	owner, client := engineOf(t, there), engineOf(t, here)
	segment, err := owner.Alloc("s", int64(len(want)), transfer.SegmentConfig{DefaultAccess: transfer.Write})
	enginetest.Must(t, err)
	local, err := client.Alloc("local", int64(len(want)), transfer.SegmentConfig{})
	enginetest.Must(t, err)
	copy(local.Bytes(), want)
	p, err := client.Peer(enginetest.Soon(t), there.Addr().String())
	enginetest.Must(t, err)
	remote, err := p.Open(enginetest.Soon(t), "s", transfer.Write)
	enginetest.Must(t, err)

	dir := t.TempDir()
	enginetest.Must(t, os.WriteFile(filepath.Join(dir, "f"), want, 0o600))
	exporter, err := files.New(files.Config{Transfer: owner, Exports: []files.ExportConfig{{Name: "d", Path: dir, DefaultAccess: files.Read}}})
	enginetest.Must(t, err)
	t.Cleanup(func() { enginetest.Must(t, exporter.Close(enginetest.Soon(t))) })
	reader, err := files.New(files.Config{Transfer: client})
	enginetest.Must(t, err)
	t.Cleanup(func() { enginetest.Must(t, reader.Close(enginetest.Soon(t))) })
	from, err := reader.Peer(enginetest.Soon(t), there.Addr().String())
	enginetest.Must(t, err)

	l, err := stream.Listen(there, "echo")
	enginetest.Must(t, err)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.Copy(c, c)
			_ = c.Close()
		}
	}()
	conn, err := stream.Dial(enginetest.Soon(t), p.Node(), "echo")
	enginetest.Must(t, err)
	t.Cleanup(func() { _ = conn.Close() })

	return map[string]func() []byte{
		"transfer": func() []byte {
			clear(segment.Bytes())
			enginetest.Must(t, p.Batch().Put(remote.At(0), local.Slice(0, int64(len(want)))).Notify([]byte("put")).Do(enginetest.Soon(t)))
			_, err := owner.Recv(enginetest.Soon(t))
			enginetest.Must(t, err)
			return segment.Bytes()
		},
		"files": func() []byte {
			to := t.TempDir()
			enginetest.Must(t, from.Get("d/f", to, files.TransferConfig{}).Wait(enginetest.Soon(t)))
			b, err := os.ReadFile(filepath.Join(to, "f"))
			enginetest.Must(t, err)
			return b
		},
		"stream": func() []byte {
			sent := make(chan error, 1)
			go func() {
				_, err := conn.Write(want)
				sent <- err
			}()
			b := make([]byte, len(want))
			_, err := io.ReadFull(conn, b)
			enginetest.Must(t, err)
			enginetest.Must(t, <-sent)
			return b
		},
	}
}

// A rail is lost and returns under each package that moves data. The data is right. Both sides log each loss with its recovery, and the
// metrics count them. There is usually one: on a slow machine, the probe of a side can time out after the return, which takes the rail down
// once more.
func TestRailLostUnderServices(t *testing.T) {
	want := make([]byte, 3<<20)
	for i := range want {
		want[i] = byte(i / 5)
	}
	for _, name := range []string{"transfer", "files", "stream"} {
		t.Run(name, func(t *testing.T) {
			var logs [2]journal
			links := enginetest.MemoryLinks(2)
			here, there := logged(t, links, &logs[0]), logged(t, links, &logs[1])
			move := users(t, here.Node, there.Node, want)[name]
			use := func(when string) {
				t.Helper()
				if !bytes.Equal(move(), want) {
					t.Errorf("%s: the data is wrong", when)
				}
			}
			c := metrics.NewCollector()
			defer c.AddNode(there.Node)()
			count := func(metric string) float64 {
				return scrape(t, c)[fmt.Sprintf(`ibverbx_rail_%s{device=%q,rail="1",session="127.0.0.1"}`, metric, there.NICs[1].Name())]
			}
			use("before the loss")
			here.NICs[1].SetPort(false)
			use("without the rail")
			enginetest.Eventually(t, "the rail is lost", func() bool { return count("sessions_down") == 1 })
			use("after the loss")
			here.NICs[1].SetPort(true)
			enginetest.Eventually(t, "the rail is back", func() bool { return here.Stats().QP.Out == 0 && there.Stats().QP.Out == 0 })
			use("after the return")
			enginetest.Eventually(t, "the metrics count the return", func() bool { return count("recoveries_total") >= 1 })
			for i := range logs { // a rail is logged after its lane is back
				enginetest.Eventually(t, "the return is logged", func() bool { n := len(logs[i].rails()); return n >= 2 && n%2 == 0 })
			}
			for i := range logs {
				if got := strings.Join(logs[i].rails(), ", "); !regexp.MustCompile(`^WARN rail down, INFO rail up(, WARN rail down, INFO rail up)*$`).MatchString(got) {
					t.Errorf("side %d has logged %s, want each loss followed by its recovery", i, got)
				}
			}
			times := float64(len(logs[1].rails()) / 2)
			if lost, back := count("losses_total"), count("recoveries_total"); lost != times || back != times {
				t.Errorf("the metrics have %v losses and %v recoveries, want %v of each, as in the log", lost, back, times)
			}
		})
	}
}
