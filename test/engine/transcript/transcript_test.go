package transcript_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ibverbx/internal/enginetest"
)

// A transcript shows what the engine does, line by line, on scripted NICs. It is a text file in
// testdata/transcripts: each command is followed by its output, after "> ". testdata/transcripts/README.txt
// describes the language. It is implemented in args_test.go (words), stage_test.go (the world), command_test.go
// (commands) and describe_test.go (answers). kernel_test.go plays the transcripts on kernel devices.
//
//	config lanes=2 fragment=100       creates a VirtualQP over held NICs; starts over
//	post write id=1 len=150           PostSend of one request
//	> lane 0: write off=0 len=100 signaled
//	> lane 1: write off=100 len=50 signaled
//	complete lane=1                   the NIC completes the oldest request of the lane
//	poll                              Poll
//	> nothing
//	complete lane=0
//	poll
//	> wc id=1 success write len=150
//
// On a mismatch the test prints both outputs side by side. After an intended change,
//
//	go test ./test/engine/transcript -run TestTranscripts -update
//
// rewrites the answers; review them in the diff.
var updateTranscripts = flag.Bool("update", false, "rewrite the answers in testdata/transcripts")

// TestTranscripts plays every transcript.
func TestTranscripts(t *testing.T) { transcripts(t, openNullStage, *updateTranscripts) }

// transcripts plays every transcript on NICs of a kind.
func transcripts(t *testing.T, open func(tb testing.TB, rail int) stageNIC, update bool) {
	files, err := filepath.Glob(filepath.Join("testdata", "transcripts", "*.txt"))
	enginetest.Must(t, err)
	if len(files) < 10 {
		t.Fatalf("%d transcripts in testdata/transcripts, want the whole set", len(files))
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".txt")
		if name == "README" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(file)
			enginetest.Must(t, err)
			lines := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
			played := playTranscript(t, file, lines, open)
			if update {
				enginetest.Must(t, os.WriteFile(file, []byte(strings.Join(played, "\n")+"\n"), 0o644))
				return
			}
			if d := besideTranscript(lines, played); d != "" {
				t.Errorf("%s does not go as it is written. Written on the left, played on the right:\n%s", file, d)
			}
		})
	}
}

// playTranscript plays the lines on NICs from open and returns them with the actual answers.
func playTranscript(tb testing.TB, file string, lines []string, open func(tb testing.TB, rail int) stageNIC) (played []string) {
	tb.Helper()
	st := &stage{tb: tb, open: open}
	defer st.close()
	for i, line := range lines {
		line = strings.TrimRight(line, " \t")
		if isAnswer(line) {
			continue
		}
		played = append(played, line)
		if isRemark(line) {
			continue
		}
		st.place = fmt.Sprintf("%s:%d", file, i+1)
		for _, answer := range st.act(line) {
			played = append(played, "> "+answer)
		}
	}
	return played
}

func isAnswer(line string) bool { return strings.HasPrefix(line, ">") }
func isRemark(line string) bool { return line == "" || strings.HasPrefix(line, "#") }

// besideTranscript prints the expected and the actual lines side by side and marks the differences. It
// returns "" if they are equal.
func besideTranscript(written, played []string) string {
	const column = 72
	var b strings.Builder
	differ := false
	w, p := written, played
	row := func(left, right string) {
		mark := ' '
		if left != right {
			mark, differ = '|', true
		}
		fmt.Fprintf(&b, "%-*s %c %s\n", column, left, mark, right)
	}
	for len(w) > 0 || len(p) > 0 {
		left, right := "", ""
		// Lines other than answers are equal on both sides, and keep the answers aligned.
		takeLeft := len(w) > 0 && (isAnswer(w[0]) || len(p) == 0 || !isAnswer(p[0]))
		takeRight := len(p) > 0 && (isAnswer(p[0]) || len(w) == 0 || !isAnswer(w[0]))
		if takeLeft {
			left, w = strings.TrimRight(w[0], " \t"), w[1:]
		}
		if takeRight {
			right, p = p[0], p[1:]
		}
		row(left, right)
	}
	if !differ {
		return ""
	}
	return b.String()
}

// TestTranscriptsCanFail: a wrong, missing or extra answer is detected and shown.
func TestTranscriptsCanFail(t *testing.T) {
	good := []string{
		"config lanes=2 fragment=100",
		"> rail 0: data 0 1, message 2",
		"post write id=1 len=50",
		"> lane 0: write off=0 len=50 signaled",
		"complete lane=0",
		"poll",
		"> wc id=1 success write len=50",
	}
	if d := besideTranscript(good, playTranscript(t, "good", good, openNullStage)); d != "" {
		t.Fatalf("the transcript does not go as it is written:\n%s", d)
	}
	for i, line := range good {
		if !isAnswer(line) {
			continue
		}
		for name, bad := range map[string][]string{
			"wrong":    append(append(append([]string{}, good[:i]...), line+"7"), good[i+1:]...),
			"missing":  append(append([]string{}, good[:i]...), good[i+1:]...),
			"too many": append(append(append([]string{}, good[:i]...), line, line), good[i+1:]...),
		} {
			d := besideTranscript(bad, playTranscript(t, "bad", bad, openNullStage))
			if !strings.Contains(d, " | ") || !strings.Contains(d, line) {
				t.Errorf("answer %q %s: the difference shows\n%s", line, name, d)
			}
		}
	}
}
