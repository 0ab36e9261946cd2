package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	numbers = regexp.MustCompile(`[0-9a-f]{4}:[0-9a-f:]{4,}|0x[0-9a-f]+|[0-9]+(\.[0-9]+)?`)
	blanks  = regexp.MustCompile(`[ \t]+`)
	rules   = regexp.MustCompile(`-{5,}`)
	blocks  = regexp.MustCompile("[▁▂▃▄▅▆▇█]+")
)

// withoutNumbers strips the numbers from output, because they vary.
func withoutNumbers(out string) string {
	out = numbers.ReplaceAllString(out, "N")
	out = rules.ReplaceAllString(out, "-----")
	out = blocks.ReplaceAllString(out, "B")
	var lines []string
	for line := range strings.Lines(out) {
		lines = append(lines, strings.TrimSpace(blanks.ReplaceAllString(line, " ")))
	}
	return strings.Join(lines, "\n") + "\n"
}

// withoutChance strips load-dependent output: the verdict, which may span several lines, and lanes, which appear only
// if they differ.
func withoutChance(out string) string {
	var b strings.Builder
	verdict := false
	for line := range strings.Lines(out) {
		verdict = strings.HasPrefix(line, "verdict:") || (verdict && !strings.HasPrefix(line, "data check"))
		if !verdict && !strings.HasPrefix(line, "lane ") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// TestRXE runs the tool on rxe devices, in the virtual machine of test/rxe, and compares its output with testdata.
func TestRXE(t *testing.T) {
	if os.Getenv("IBVERBX_TEST_RXE") != "1" {
		t.Skip("needs the kernel's rxe devices: run test/rxe/all")
	}
	for name, args := range map[string]string{
		"devices": "devices --provider rdmacore --devices =rxe0",
		"perf":    "perf write -s 64KiB -n 200 --provider rdmacore --devices rxe0,rxe1 --rails 1 -q 4 --check",
		"imm":     "perf write --imm --scheme dqplb -s 4KiB -n 200 --provider rdmacore --rails 2 -q 4",
		"uc":      "perf write -s 64KiB -n 50 --provider rdmacore --devices rxe0,rxe1 --rails 1 -q 4 --check --transport uc",
		"lat":     "perf send --lat -s 64 -n 100 --provider auto --rails 1 -q 1",
	} {
		t.Run(name, func(t *testing.T) {
			status, out, stderr := command(t.Context(), strings.Fields(args)...)
			if status != exitOK {
				t.Fatalf("ibverbx %s: status %d, stderr %q", args, status, stderr)
			}
			file := filepath.Join("testdata", "rxe-"+name+".txt")
			want, err := os.ReadFile(file)
			if err != nil {
				t.Error(err)
			}
			if got := withoutChance(withoutNumbers(out)); got != string(want) {
				t.Errorf("ibverbx %s prints, without its numbers:\n%s\n%s has:\n%s", args, got, file, want)
			}
		})
	}
}
