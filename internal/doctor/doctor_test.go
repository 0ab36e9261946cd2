package doctor

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// findings returns the findings of a report other than ok, one per line.
func findings(r *Report) string {
	var b strings.Builder
	for _, f := range r.Findings {
		if f.Level != OK {
			fmt.Fprintf(&b, "%s %s: %s\n", f.Level, f.Check, f.Found)
		}
	}
	return b.String()
}

// advice returns all steps of a report, one per line.
func advice(r *Report) string {
	var b strings.Builder
	for _, f := range r.Findings {
		for _, step := range f.Do {
			b.WriteString(step + "\n")
		}
	}
	return b.String()
}

const noDeviceFound = "problem devices: the kernel shows no RDMA device (/sys/class/infiniband is empty or missing)\n"

// scenario is a machine and the expected report: all findings other than ok, in order, and parts of
// the advice.
type scenario struct {
	name     string
	machine  machine
	usable   bool
	findings string
	advice   []string
}

// play examines the machine of each scenario.
func play(t *testing.T, scenarios []scenario) {
	t.Helper()
	for _, tt := range scenarios {
		t.Run(tt.name, func(t *testing.T) {
			r := Examine(tt.machine.machine())
			if r.Usable != tt.usable {
				t.Errorf("usable is %v, want %v", r.Usable, tt.usable)
			}
			if got := findings(&r); got != tt.findings {
				t.Errorf("the findings are\n%swant\n%s", got, tt.findings)
			}
			said := advice(&r)
			for _, want := range tt.advice {
				if !strings.Contains(said, want) {
					t.Errorf("the advice is\n%swant %q in it", said, want)
				}
			}
			checkReport(t, &r)
		})
	}
}

// checkReport checks the invariants of every report.
func checkReport(t *testing.T, r *Report) {
	t.Helper()
	if !r.Softnic {
		t.Error("softnic is false, want true on every machine")
	}
	if r.Modules == nil || r.Devices == nil || r.Providers == nil || len(r.Findings) == 0 {
		t.Errorf("a list is nil or there is no finding: %+v", r)
	}
	problems := 0
	for _, f := range r.Findings {
		switch {
		case f.Check == "" || f.Found == "":
			t.Errorf("finding %+v has no check or no text", f)
		case f.Level == OK && (f.Means != "" || len(f.Do) > 0):
			t.Errorf("finding %+v is ok and has advice", f)
		case f.Level != OK && f.Means == "":
			t.Errorf("finding %+v has no meaning", f)
		}
		if f.Level == Problem {
			problems++
		}
	}
	if r.Usable != (problems == 0) {
		t.Errorf("usable is %v with %d problems", r.Usable, problems)
	}
}

// TestInventory checks the inventory of a healthy machine, as in --json.
func TestInventory(t *testing.T) {
	r := Examine(mlx5().machine())
	want := Device{
		Name: "mlx5_0", NodeType: "CA", NodeGUID: "b859:9f03:00aa:bb01", Firmware: "22.36.1010", Driver: "mlx5",
		File: "/dev/infiniband/uverbs0", Usable: true,
		Ports: []Port{{
			Number: 1, State: "ACTIVE", Physical: "LinkUp", LinkLayer: "Ethernet", Rate: "100 Gb/sec (4X EDR)",
			NetDev: "ens1f0", MTUNetDev: 9000, MTU: 4096,
			GIDs: []GID{
				{Index: 0, GID: "fe80::ba59:9fff:feaa:bb01", Type: "IB/RoCE v1", NetDev: "ens1f0"},
				{Index: 1, GID: "fe80::ba59:9fff:feaa:bb01", Type: "RoCE v2", NetDev: "ens1f0"},
				{Index: 2, GID: "::ffff:192.0.2.1", Type: "IB/RoCE v1", NetDev: "ens1f0"},
				{Index: 3, GID: "::ffff:192.0.2.1", Type: "RoCE v2", NetDev: "ens1f0"},
			},
		}},
	}
	if got, want := asJSON(t, r.Devices), asJSON(t, []Device{want}); got != want {
		t.Errorf("the devices are\n%s\nwant\n%s", got, want)
	}
	library := Library{Path: "/usr/lib/x86_64-linux-gnu/libibverbs.so.1", Version: "44.0", ProviderABI: "rdmav34"}
	if r.Library != library {
		t.Errorf("the library is %+v, want %+v", r.Library, library)
	}
	providers := []Provider{
		{Name: "mlx5", Path: "/usr/lib/x86_64-linux-gnu/libibverbs/libmlx5-rdmav34.so"},
		{Name: "rxe", Path: "/usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so"},
	}
	if !slices.Equal(r.Providers, providers) {
		t.Errorf("the providers are %+v, want %+v", r.Providers, providers)
	}
	for _, m := range r.Modules {
		if loaded := slices.Contains([]string{"ib_core", "ib_uverbs", "rdma_ucm", "mlx5_ib"}, m.Name); m.Loaded != loaded {
			t.Errorf("module %s: loaded is %v, want %v", m.Name, m.Loaded, loaded)
		}
	}
	if r.Memlock.Soft != -1 || r.Memlock.Hard != -1 || r.Memlock.Exempt {
		t.Errorf("memlock is %+v, want unlimited without exemption", r.Memlock)
	}
}

func asJSON(t *testing.T, v any) string {
	t.Helper()
	b, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		t.Fatalf("json.MarshalIndent(%+v) = %v, want no error", v, err)
	}
	return string(b)
}

func TestOtherSystems(t *testing.T) {
	r := Examine(Machine{OS: "darwin"})
	if got, want := findings(&r), "problem system: this is darwin\n"; got != want {
		t.Errorf("the findings are %q, want %q", got, want)
	}
	checkReport(t, &r)
}

// TestHost examines the machine that runs the test.
func TestHost(t *testing.T) {
	r := Examine(Host())
	checkReport(t, &r)
	if r.System.OS != runtime.GOOS {
		t.Errorf("the system is %q, want %q", r.System.OS, runtime.GOOS)
	}
	if runtime.GOOS == "linux" && r.System.Kernel == "" {
		t.Error("the kernel has no name, want its release")
	}
	if os.Getenv("IBVERBX_TEST_RXE") == "" && len(r.Devices) == 0 && r.Usable {
		t.Error("usable without a device")
	}
}
