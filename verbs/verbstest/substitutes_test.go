package verbstest

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"ibverbx/verbs"
)

// numbered is a QP that only has a number.
type numbered struct{ verbs.QP }

func (numbered) Num() uint32 { return 7 }

// substituteVariable holds the completion status for TestSubstitutes in the child process.
const substituteVariable = "IBVERBX_TEST_VERBSTEST_STATUS"

// A failed completion must have the right status or a substitute of it. A failing check fails its
// test, so it runs in a child process.
func TestSubstitutes(t *testing.T) {
	if text := os.Getenv(substituteVariable); text != "" {
		status, err := strconv.Atoi(text)
		if err != nil {
			t.Fatalf("%s = %q, want a number", substituteVariable, text)
		}
		pair := Pair{Substitutes: map[verbs.Status][]verbs.Status{
			verbs.StatusLocProtErr: {verbs.StatusLocQPOpErr, verbs.StatusGeneralErr, verbs.StatusSuccess},
			verbs.StatusLocQPOpErr: {verbs.StatusFatalErr},
			verbs.StatusLocLenErr:  {verbs.StatusBadRespErr},
		}}
		e := &env{T: t, pair: &pair}
		q := &end{QP: numbered{}, side: &side{name: "A"}}
		e.failed(verbs.WC{WRID: 1, QPN: 7, Status: verbs.Status(status)}, q, 1, verbs.StatusLocProtErr, verbs.StatusWRFlushErr)
		return
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatalf("Executable = %v, want the test itself", err)
	}
	for _, tt := range []struct {
		name   string
		status verbs.Status
		passes bool
	}{
		{"right", verbs.StatusLocProtErr, true},
		{"other right one", verbs.StatusWRFlushErr, true},
		{"substitute", verbs.StatusLocQPOpErr, true},
		{"second substitute", verbs.StatusGeneralErr, true},
		{"substitute of another status", verbs.StatusBadRespErr, false},
		{"substitute of a substitute", verbs.StatusFatalErr, false},
		{"wrong", verbs.StatusRemAccessErr, false},
		{"success", verbs.StatusSuccess, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cmd := exec.Command(self, "-test.run=^TestSubstitutes$", "-test.v")
			cmd.Env = append(os.Environ(), substituteVariable+"="+strconv.Itoa(int(tt.status)))
			out, err := cmd.CombinedOutput()
			if (err == nil) != tt.passes {
				t.Errorf("a completion with %q: %v, want it to pass: %v\n%s", tt.status, err, tt.passes, out)
			}
			told := strings.Contains(string(out), "is accepted as")
			if want := tt.passes && strings.Contains(tt.name, "substitute"); tt.passes && told != want {
				t.Errorf("a completion with %q: the log tells of a substitute: %v, want %v\n%s", tt.status, told, want, out)
			}
		})
	}
}

// Test names are unique, so that departures and document rows are unambiguous.
func TestNames(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range families {
		for _, tt := range f.tests {
			name := f.name + "/" + tt.name
			if seen[name] {
				t.Errorf("two tests are called %s, want one", name)
			}
			seen[name] = true
		}
	}
}
