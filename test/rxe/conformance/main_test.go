package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// made returns the document for the suite in testdata, with changes to rxe's log.
func made(t *testing.T, changes ...string) (string, error) {
	t.Helper()
	text, err := os.ReadFile("testdata/rxe.log")
	if err != nil {
		t.Fatalf("read the log: %v, want it in testdata", err)
	}
	log := filepath.Join(t.TempDir(), "rxe.log")
	if err := os.WriteFile(log, []byte(strings.NewReplacer(changes...).Replace(string(text))), 0o600); err != nil {
		t.Fatalf("write the log: %v, want success", err)
	}
	var out bytes.Buffer
	err = run(&out, "testdata/suite", "testdata/softnic.log", log)
	return out.String(), err
}

// The document contains the rows, counts, reasons and versions of the logs and the source.
func TestDocument(t *testing.T) {
	doc, err := made(t)
	if err != nil {
		t.Fatalf("run = %v, want a document", err)
	}
	for _, want := range []string{
		"Tested on Linux 6.1.0-1-amd64 with rdma-core 44.0.",
		"| softnic | 5 | 0 | 0 | 0 | 0 |\n",
		"| rxe, one device | 0 | 1 | 1 | 1 | 2 |\n",
		"| rxe, two devices | 1 | 1 | 1 | 1 | 1 |\n",
		"| `send/Sizes` | Messages of all sizes arrive (IBTA 9.5, ibv_post_send(3)), 1.5 of them. | yes | yes, status | yes, status |\n",
		"| `send/Cases` | Every case \\| fails. | yes | departs | yes |\n",
		"| `send/Parts` | It has parts. | yes | partial | partial |\n",
		"| `uc/Drops` | Nothing is told. | yes | n/a | n/a |\n",
		"| `uc/SQE` |  | yes | departs | departs |\n",
		"- stays at home: `send/Cases` (rxe, one device)\n",
		"- drops one: `send/Parts/one`\n",
		"- has no SQE: `uc/SQE`\n",
		"- \"bad\" for \"worse\": it does not know better.\n",
		"- \"bad\" is accepted as \"worse\": `send/Sizes`\n",
		"- device rxe0 lacks CapUC: `uc/Drops` (rxe)\n",
		"\n\n| requests | softnic to rxe | rxe to softnic |\n|---|---|---|\n| RC SEND | yes | yes |\n\n## Running the suite",
	} {
		if n := strings.Count(doc, want); n != 1 {
			t.Errorf("the document has %q %d times, want once", want, n)
		}
	}
	if strings.Contains(doc, "a word of the family") || strings.Contains(doc, "slow") {
		t.Error("the document has what another test logged, or what another run did whole, want neither")
	}
	if t.Failed() {
		t.Logf("the document:\n%s", doc)
	}
}

// A log with failures or missing tests is rejected.
func TestRefuses(t *testing.T) {
	for _, tt := range []struct{ name, old, new, want string }{
		{"failure", "--- PASS: TestConformanceRXEPair/send/Cases", "--- FAIL: TestConformanceRXEPair/send/Cases", "verdict FAIL on TestConformanceRXEPair/send/Cases"},
		{"failed part", "--- SKIP: TestConformanceRXE/send/Parts/one", "--- FAIL: TestConformanceRXE/send/Parts/one", "verdict FAIL on TestConformanceRXE/send/Parts/one"},
		{"cut off", "--- SKIP: TestConformanceRXEPlain/uc/SQE", "", "no verdict on TestConformanceRXEPlain/uc/SQE"},
		{"not run", "TestConformanceRXEPair/", "TestOther/", "no verdict on TestConformanceRXEPair/send/Sizes"},
		{"no interop", "interop table: ", "", "no interop table"},
		{"interop failed", "| RC SEND | yes | yes |", "| RC SEND | yes | no |", "| RC SEND | yes | no |"},
		{"interop not run", "| RC SEND | yes | yes |", "| RC SEND | not run | yes |", "| RC SEND | not run | yes |"},
		{"no version", "version of Linux", "", "version of Linux"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			doc, err := made(t, tt.old, tt.new)
			if err == nil || !strings.Contains(err.Error(), tt.want) || doc != "" {
				t.Errorf("run = %v with %d bytes of document, want an error with %q and none", err, len(doc), tt.want)
			}
		})
	}
}

// A suite that cannot be read is an error, not an empty document.
func TestNoSuite(t *testing.T) {
	if _, err := readSuite(t.TempDir()); err == nil {
		t.Error("readSuite of an empty directory = nil, want an error")
	}
}
