package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ibverbx/internal/perf/measure"
	"ibverbx/internal/perf/report"
	"ibverbx/settings"
)

// commandIn runs a command line in process with environment variables.
func commandIn(t *testing.T, env map[string]string, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, err bytes.Buffer
	lookup := func(name string) (string, bool) { value, ok := env[name]; return value, ok }
	status = run(t.Context(), args, streams{in: strings.NewReader(""), out: &out, err: &err, provider: providerSoftNIC, env: lookup})
	return status, out.String(), err.String()
}

// TestPerfReportsSettings: flags and variables take effect, a flag wins, names of perftest work, and
// the report lists what was set and where.
func TestPerfReportsSettings(t *testing.T) {
	env := map[string]string{"IBVERBX_TCLASS": "8", "IBVERBX_RETRY": "3", "IBVERBX_UC_PATHS": "4"}
	args := []string{"perf", "-s", "4K", "-n", "10", "--tclass", "104", "-S", "2", "-x", "1", "--qp-timeout", "16", "--pkey_index", "0"}
	for _, more := range []string{"", "-c UD", "-c UC", "--transport uc"} {
		words := append(append([]string{}, args...), strings.Fields(more)...)
		if more == "-c UD" {
			words[0], words = "perf", append([]string{"perf", "send"}, words[1:]...)
		}
		status, out, stderr := commandIn(t, env, append(words, "--json")...)
		var r measure.Report
		if err := json.Unmarshal([]byte(out), &r); status != exitOK || err != nil {
			t.Fatalf("perf %s: status %d, %v, %s", more, status, err, stderr)
		}
		const want = "tclass 104 (--tclass), sl 2 (--sl), pkey-index 0 (--pkey-index), gid-index 1 (--gid-index), " +
			"ack-timeout 16 (--ack-timeout), retry 3 (IBVERBX_RETRY), uc-paths 4 (IBVERBX_UC_PATHS)"
		if got := report.SettingsText(r.Settings); got != want {
			t.Errorf("perf %s reports %s, want %s", more, got, want)
		}
	}
	_, out, _ := commandIn(t, env, "perf", "-s", "4K", "-n", "10", "--transport", "uc", "-v")
	says(t, out, " Settings        : tclass 8 (IBVERBX_TCLASS), retry 3 (IBVERBX_RETRY)", "RC made of 4 UC QPs each")
}

// TestPerfSettingErrors: a bad value is an error that names the flag or the variable, and the legal
// values. So is a row that the port does not have.
func TestPerfSettingErrors(t *testing.T) {
	for _, tt := range []struct {
		env    map[string]string
		args   string
		status int
		want   []string
	}{
		{nil, "--sl 16", exitUsage, []string{"--sl", "use 0 to 15"}},
		{nil, "--gid-index 1,x", exitUsage, []string{"--gid-index", "use 0 to 255"}},
		{map[string]string{"IBVERBX_RNR_TIMER": "32"}, "", exitUsage, []string{`IBVERBX_RNR_TIMER=32: use 0 to 31`}},
		{map[string]string{"IBVERBX_GID_INDEX": "7"}, "", exitFailure, []string{"IBVERBX_GID_INDEX 7: rail 0 (soft0)", "want -1 to 1"}},
		{nil, "--pkey-index 1", exitFailure, []string{"--pkey-index 1: rail 0 (soft0)", "want 0 to 0"}},
		{nil, "--gid-index 1,1 --rails 3", exitUsage, []string{"--gid-index 1,1: there are rows for 2 rails, and 3 rails"}},
	} {
		status, _, stderr := commandIn(t, tt.env, append([]string{"perf", "-s", "8", "-n", "10"}, strings.Fields(tt.args)...)...)
		for _, want := range tt.want {
			if status != tt.status || !strings.Contains(stderr, want) {
				t.Errorf("%v perf %s: status %d, %q, want %d and %q", tt.env, tt.args, status, stderr, tt.status, want)
			}
		}
	}
}

// TestPerfHelpListsSettings: the help has every flag with its range and its variable.
func TestPerfHelpListsSettings(t *testing.T) {
	all := strings.Join(strings.Fields(succeed(t, "perf", "--help-all")), " ")
	_, help, _ := strings.Cut(all, "Fabric settings ")
	for _, s := range settings.All() {
		says(t, all, " --"+s.Name+" ")
		_, text, _ := strings.Cut(help, "--"+s.Name+" ")
		if text, _, _ = strings.Cut(text, " --"); s.Tuning && (!strings.Contains(text, s.Range) || !strings.Contains(text, s.Env)) {
			t.Errorf("the help says %q of --%s, want its range and its variable", text, s.Name)
		}
	}
}

// TestPerfPcapShowsTrafficClass: the packets that a client sends have the class and the hop limit of
// its flags in the capture.
func TestPerfPcapShowsTrafficClass(t *testing.T) {
	_, addr := serve(t, noAuth)
	file := filepath.Join(t.TempDir(), "roce.pcapng")
	status, _, stderr := commandIn(t, nil, "perf", addr, noAuth, "-s", "8K", "-n", "5", "--tclass", "104", "--hop-limit", "9", "--pcap", file)
	b, err := os.ReadFile(file)
	if status != exitOK || err != nil {
		t.Fatalf("perf --pcap: status %d, %v, %s", status, err, stderr)
	}
	marked := 0
	const packetBlock, packetHeader = 6, 28
	for len(b) > packetHeader {
		if ip := b[packetHeader:]; b[0] == packetBlock && ip[1] == 104 && ip[8] == 9 {
			marked++
		}
		b = b[binary.LittleEndian.Uint32(b[4:]):]
	}
	if marked < 5 {
		t.Errorf("%d packets have class 104 and hop limit 9, want those of 5 messages at least", marked)
	}
}
