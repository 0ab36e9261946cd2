package main

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"ibverbx/internal/doctor"
)

// reports are two machines: one that can do RDMA, and one that cannot.
func reports() (usable, broken doctor.Report) {
	usable = doctor.Report{
		Usable: true, Softnic: true,
		Devices: []doctor.Device{{Name: "mlx5_0", Usable: true}, {Name: "mlx5_1"}, {Name: "mlx5_2", Usable: true}},
		Findings: []doctor.Finding{
			{Check: "mtu", Level: doctor.Note, Found: "the MTU is 1500", Means: "Packets are small.", Do: []string{"ip link set eth0 mtu 9000", "Or live with it."}},
			{Check: "devices", Level: doctor.OK, Found: "3 RDMA devices"},
		},
	}
	broken = doctor.Report{
		Softnic: true,
		Findings: []doctor.Finding{
			{Check: "devices", Level: doctor.Problem, Found: "no RDMA device", Means: "Nothing to open."},
			{Check: "library", Level: doctor.Problem, Found: "no library", Means: "Nothing to load.", Do: []string{"apt-get install libibverbs1"}},
			{Check: "memlock", Level: doctor.OK, Found: "locked memory is not limited"},
		},
	}
	return usable, broken
}

func TestDoctorText(t *testing.T) {
	usable, broken := reports()
	single := broken
	single.Findings = broken.Findings[1:]
	const softnic = "softnic, the NIC in software, works anyway: ibverbx perf measures it.\n"
	for _, tt := range []struct {
		report doctor.Report
		want   string
	}{
		{usable, `note       mtu: the MTU is 1500
           Packets are small.
           - ip link set eth0 mtu 9000
           - Or live with it.

ok         devices: 3 RDMA devices

RDMA is usable: mlx5_0, mlx5_2
` + softnic},
		{broken, `problem    devices: no RDMA device
           Nothing to open.

problem    library: no library
           Nothing to load.
           - apt-get install libibverbs1

ok         memlock: locked memory is not limited

RDMA is not usable: 2 problems stop it. Start with the first.
` + softnic},
		{single, `problem    library: no library
           Nothing to load.
           - apt-get install libibverbs1

ok         memlock: locked memory is not limited

RDMA is not usable: 1 problem stops it.
` + softnic},
	} {
		var out bytes.Buffer
		if err := printReport(streams{out: &out}, &tt.report, false); err != nil || out.String() != tt.want {
			t.Errorf("printReport = %v, prints\n%s\nwant\n%s", err, out.String(), tt.want)
		}
	}
}

// TestDoctor runs the command on the machine under this test, whatever it has: the exit
// status, the last lines and the JSON object must agree.
func TestDoctor(t *testing.T) {
	status, out, stderr := command(t.Context(), "doctor", "--json")
	var r map[string]any
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("doctor --json prints %v, want one object:\n%s", err, out)
	}
	for _, key := range []string{"usable", "softnic", "findings", "system", "modules", "devices", "library", "providers", "memlock"} {
		if _, ok := r[key]; !ok {
			t.Errorf("doctor --json has no field %q, want it: the help promises it", key)
		}
	}
	usable, _ := r["usable"].(bool)
	want, message, last := exitFailure, "ibverbx: RDMA is not usable on this machine; softnic is\n", "RDMA is not usable: "
	if usable {
		want, message, last = exitOK, "", "RDMA is usable: "
	}
	if status != want || stderr != message {
		t.Errorf("usable is %v, status %d, stderr %q; want %d and %q", usable, status, stderr, want, message)
	}
	status, out, _ = command(t.Context(), "doctor")
	if lineWith(out, last) == "" || lineWith(out, "softnic, the NIC in software, works anyway") == "" || status != want {
		t.Errorf("status %d and output\n%s\nwant %d, a line %q and one about softnic", status, out, want, last)
	}
}

// TestDoctorHelp holds that the help names every field of the object and the exit statuses.
func TestDoctorHelp(t *testing.T) {
	help := succeed(t, "doctor", "--help")
	b, err := json.Marshal(doctor.Report{})
	if err != nil {
		t.Fatalf("json.Marshal = %v, want no error", err)
	}
	var fields map[string]any
	if err := json.Unmarshal(b, &fields); err != nil {
		t.Fatalf("json.Unmarshal = %v, want no error", err)
	}
	for field := range fields {
		if !slices.ContainsFunc(strings.Split(help, "\n"), func(line string) bool { return strings.HasPrefix(line, "  "+field+" ") }) {
			t.Errorf("the help has no line for the field %q, want one", field)
		}
	}
	if !strings.Contains(help, "The exit status is 0 if") {
		t.Errorf("the help does not say what the exit status is:\n%s", help)
	}
}

func TestDoctorOutputErrors(t *testing.T) {
	for _, args := range [][]string{{"doctor"}, {"doctor", "--json"}} {
		var stderr bytes.Buffer
		status := run(t.Context(), args, streams{out: full{}, err: &stderr})
		if status != exitFailure || !strings.Contains(stderr.String(), "file already closed") {
			t.Errorf("ibverbx %v: status %d, stderr %q; want %d and the reason", args, status, stderr.String(), exitFailure)
		}
	}
	refused(t, "doctor mlx5_0", "no arguments")
}

// TestDoctorShowsVariables: doctor shows the variables that are set, and warns of bad values and of
// names that no setting has. Variables of tests and of other programs are not its business.
func TestDoctorShowsVariables(t *testing.T) {
	r := doctor.Report{Findings: []doctor.Finding{{Check: "mtu", Level: doctor.Note}, {Check: "devices", Level: doctor.OK}}}
	r.Add(judgeEnv([]string{
		"IBVERBX_TCLASS=104", "PATH=/bin", "IBVERBX_SL=16", "IBVERBX_TC=1", "IBVERBX_TEST_SEED=1", "IBVERBX_RETRY=", "IBVERBX_LOSS=2", "IBVERBX_COUNT=3",
		"IBVERBX_LIB=/lib", "IBVERBX_NCCL_STATS=1", "IBVERBX_NCCL_DEADLINE=soon", "IBVERBX_ADDR=fe80::1%eth0",
	})...)
	var got []string
	for _, f := range r.Findings {
		got = append(got, string(f.Level)+" "+f.Check+": "+f.Found)
	}
	want := []string{
		"warning environment: IBVERBX_ADDR=fe80::1%eth0: use at most 16 IP addresses with commas, such as 10.0.0.1,10.0.0.2",
		"warning environment: IBVERBX_LOSS=2: use 0% to 100%",
		`warning environment: invalid argument: IBVERBX_NCCL_DEADLINE is "soon": want a time of 1s to 10m`,
		`warning environment: IBVERBX_SL is "16": want 0 to 15`, "warning environment: IBVERBX_TC is set", "note mtu: ", "ok devices: ",
		"ok environment: IBVERBX_COUNT is 3: for programs of ibverbx run", "ok environment: IBVERBX_LIB is /lib: for programs of ibverbx run",
		"ok environment: IBVERBX_NCCL_STATS is 1: for programs of ibverbx nccl",
		"ok environment: IBVERBX_TCLASS is 104: traffic class of packets: four times the DSCP",
	}
	if !slices.Equal(got, want) {
		t.Errorf("doctor finds\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
