package metrics_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"ibverbx/internal/enginetest"
	"ibverbx/metrics"
)

// docs/observability.md lists every metric, and the dashboard and the alerts use only these.
func TestDocsHaveAllNames(t *testing.T) {
	read := func(name string) string {
		b, err := os.ReadFile(filepath.Join("..", "docs", name))
		enginetest.Must(t, err)
		return string(b)
	}
	descs := make(chan *prometheus.Desc, 1000)
	metrics.NewCollector().Describe(descs)
	close(descs)
	known := map[string]bool{}
	page := read("observability.md")
	for d := range descs {
		name := regexp.MustCompile(`fqName: "(\w+)"`).FindStringSubmatch(d.String())[1]
		known[name] = true
		if text := "`" + strings.TrimPrefix(name, "ibverbx_"); !strings.Contains(page, text+"`") && !strings.Contains(page, text+"{") {
			t.Errorf("docs/observability.md lacks %s", name)
		}
	}
	for _, file := range []string{"grafana.json", "alerts.yml"} {
		found := regexp.MustCompile(`\bibverbx_\w+`).FindAllString(read(file), -1)
		if len(found) == 0 {
			t.Errorf("docs/%s has no metric", file)
		}
		for _, name := range found {
			if !known[name] && name != "ibverbx_" { // the prefix of all
				t.Errorf("docs/%s has %s, which does not exist", file, name)
			}
		}
	}
}
