package settings_test

import (
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/peer"
	"ibverbx/settings"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// must fails the test on an error.
var must = enginetest.Must

// env returns a lookup in some variables.
func env(vars map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) { value, ok := vars[name]; return value, ok }
}

// TestNames: the variable of a setting is its name in capitals behind IBVERBX_, and no name is used
// twice or by tests.
func TestNames(t *testing.T) {
	var names []string
	for _, s := range settings.All() {
		if want := "IBVERBX_" + strings.ReplaceAll(strings.ToUpper(s.Name), "-", "_"); s.Env != want {
			t.Errorf("the variable of %s is %s, want %s", s.Name, s.Env, want)
		}
		if s.About == "" || s.Range == "" || s.Default == "" || settings.Reserved(s.Env) {
			t.Errorf("setting %+v lacks a text, or tests use its variable", s)
		}
		names = append(names, s.Name)
		if s.Short != "" {
			names = append(names, s.Short)
		}
	}
	slices.Sort(names)
	if len(slices.Compact(slices.Clone(names))) != len(names) {
		t.Errorf("names are used twice: %q", names)
	}
	if !settings.Reserved("IBVERBX_TEST_SEED") || !settings.Reserved("IBVERBX_TEST_HOST") || settings.Reserved("IBVERBX_SEEDS") {
		t.Error("Reserved: want the variables of tests and no others")
	}
}

// TestIllegalValueChangesNothing: a setting keeps its value if the next one is illegal.
func TestIllegalValueChangesNothing(t *testing.T) {
	for _, row := range settings.All() {
		legal := map[string]string{
			"addr": "10.0.0.1", "devices": "mlx5_0", "peer-network": "10.0.0.0/8", "impair": "loss=1%", "pcap": "file", "pcap-wire": "file", "uc-window": "65536", "uc-give-up": "1s",
		}[row.Name]
		if legal == "" {
			legal = append(slices.Clone(row.Values), "1")[0]
		}
		if row.Switch {
			legal = "1"
		}
		for _, illegal := range []string{"", "\x00"} {
			var s, want settings.Settings
			must(t, errors.Join(s.Set(row.Name, legal, "--"+row.Name), want.Set(row.Name, legal, "--"+row.Name)))
			if err := s.Set(row.Name, illegal, "a test"); err != nil && !reflect.DeepEqual(s, want) {
				t.Errorf("%s %q and then %q: got %v and another value, want %q to stay", row.Name, legal, illegal, err, legal)
			}
		}
	}
}

// TestReadEnv: every variable reaches its field, also an explicit 0.
func TestReadEnv(t *testing.T) {
	var s settings.Settings
	must(t, s.ReadEnv(env(map[string]string{
		"IBVERBX_TCLASS": "0x68", "IBVERBX_SL": "3", "IBVERBX_PKEY_INDEX": "7", "IBVERBX_GID_INDEX": "3, 0", "IBVERBX_HOP_LIMIT": "9",
		"IBVERBX_ACK_TIMEOUT": "0", "IBVERBX_RETRY": "0", "IBVERBX_RNR_RETRY": "0", "IBVERBX_RNR_TIMER": "0",
		"IBVERBX_UC_PATHS": "4", "IBVERBX_UC_WINDOW": "65536", "IBVERBX_UC_GIVE_UP": "2s",
		"IBVERBX_TEST_SEED": "x", "OTHER": "y",
		"IBVERBX_PROVIDER": "softnic", "IBVERBX_DEVICES": "mlx5_0:1", "IBVERBX_ADDR": "10.0.0.1, ::1", "IBVERBX_RAILS": "3", "IBVERBX_LANES": "5",
		"IBVERBX_LINK": "UDP", "IBVERBX_TRANSPORT": "uc", "IBVERBX_PEER_NETWORK": "10.1.0.0/16", "IBVERBX_UNSEALED": "1",
		"IBVERBX_REQUIRE_SEALED": "true", "IBVERBX_IMPAIR": "loss=1%;rail=1,delay=1ms", "IBVERBX_PCAP": "a", "IBVERBX_PCAP_WIRE": "b", "IBVERBX_SNAPLEN": "96",
	})))
	want := verbs.PathConfig{TrafficClass: 104, SL: 3, PKeyIndex: 7, HopLimit: 9, AckTimeout: -1, RetryCount: -1, RNRRetry: -1, MinRNRTimer: -1}
	if s.Path != want || fmt.Sprint(s.GIDIndex) != "[3 0]" {
		t.Errorf("the path is %+v with rows %v, want %+v with 3 and 0", s.Path, s.GIDIndex, want)
	}
	r := &s.Reliable
	if r.Paths != 4 || r.WindowBytes != 65536 || r.GiveUp != int64(2*time.Second) {
		t.Errorf("the configuration of reliable is %+v", r)
	}
	f := peer.Fabric{
		Provider: peer.ProviderSoftNIC, Devices: "mlx5_0:1", Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.IPv6Loopback()}, RailCount: 3, Lanes: 5,
		Link: peer.LinkUDP, Transport: peer.TransportUC, Reliable: *r, Path: want, GIDIndex: s.GIDIndex, PeerNetworks: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")},
		Unsealed: true, RequireSealed: true, Impair: []peer.Impair{{Rail: -1, Loss: 0.01}, {Rail: 1, Delay: time.Millisecond}},
	}
	if !reflect.DeepEqual(s.Fabric, f) || s.Captures != (peer.CaptureConfig{Plain: "a", Wire: "b", SnapLen: 96}) {
		t.Errorf("the Fabric is %+v with %+v, want %+v", s.Fabric, s.Captures, f)
	}
	if len(s.Origins) != len(settings.All()) || s.Origins[0] != (settings.Origin{Name: "provider", Value: "softnic", From: "IBVERBX_PROVIDER"}) {
		t.Errorf("given %+v, want every setting, in order", s.Origins)
	}
}

// TestEveryField: every field of Fabric, and every path setting, has a setting, except the fields that a program
// sets. A new field needs a new setting.
func TestEveryField(t *testing.T) {
	named := map[string]bool{"Local": true, "Capture": true, "Path.Seal": true, "Path.GIDIndex": true} // GIDIndex is the list
	for _, s := range settings.All() {
		named[s.Field] = true
		if _, ok := reflect.TypeFor[settings.Settings]().FieldByName(strings.Split(s.Field, ".")[0]); !ok {
			t.Errorf("setting %s fills %s: there is no such field", s.Name, s.Field)
		}
	}
	for _, of := range []struct {
		prefix string
		fields []reflect.StructField
	}{
		{"", reflect.VisibleFields(reflect.TypeFor[peer.Fabric]())},
		{"Path.", reflect.VisibleFields(reflect.TypeFor[verbs.PathConfig]())},
	} {
		for _, f := range of.fields {
			if name := of.prefix + f.Name; !named[name] && name != "Path" && name != "Reliable" {
				t.Errorf("no setting fills Fabric.%s", name)
			}
		}
	}
}

// TestContradictions: conflicting settings are rejected by the names of their flags and variables,
// and a Fabric by its fields.
func TestContradictions(t *testing.T) {
	for want, vars := range map[string]map[string]string{
		"--link shm with IBVERBX_ADDR 10.0.0.1: ":                                                        {"IBVERBX_ADDR": "10.0.0.1"},
		"--link shm with IBVERBX_IMPAIR loss=1%: ":                                                       {"IBVERBX_IMPAIR": "loss=1%"},
		"--link shm with IBVERBX_PCAP f: ":                                                               {"IBVERBX_PCAP": "f"},
		"IBVERBX_UNSEALED 1 with IBVERBX_REQUIRE_SEALED 1: ":                                             {"IBVERBX_UNSEALED": "1", "IBVERBX_REQUIRE_SEALED": "1"},
		"IBVERBX_DEVICES mlx5 with IBVERBX_PROVIDER softnic: ":                                           {"IBVERBX_DEVICES": "mlx5", "IBVERBX_PROVIDER": "softnic"},
		"IBVERBX_PCAP_WIRE f with IBVERBX_PCAP f: each needs its own file":                               {"IBVERBX_PCAP": "f", "IBVERBX_PCAP_WIRE": "f", "IBVERBX_LINK": "udp"},
		"IBVERBX_SNAPLEN 96: it needs a file":                                                            {"IBVERBX_SNAPLEN": "96"},
		"IBVERBX_IMPAIR rail=3,loss=1%: rail=3,loss=1%: there are at most 2 rails; use rail=0 to rail=1": {"IBVERBX_IMPAIR": "rail=3,loss=1%", "IBVERBX_RAILS": "2", "IBVERBX_LINK": "udp"},
	} {
		var s settings.Settings
		if vars["IBVERBX_LINK"] == "" {
			must(t, s.Set("link", "shm", "--link"))
		}
		must(t, s.ReadEnv(env(vars)))
		if err := s.Check(); !errors.Is(err, verbs.ErrInvalid) || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v: got %v, want %q", vars, err, want)
		}
	}
	f := peer.Fabric{Link: peer.LinkShm, Addrs: []netip.Addr{netip.IPv6Loopback()}}
	if err := f.CheckFabric(); err == nil || !strings.HasPrefix(err.Error(), "Fabric.Link with Fabric.Addrs: ") {
		t.Errorf("CheckFabric = %v, want the names of the fields", err)
	}
}

// TestJoin: values of a repeated flag accumulate, and replace the variable's.
func TestJoin(t *testing.T) {
	var s settings.Settings
	must(t, s.Set("addr", "10.0.0.9", "IBVERBX_ADDR"))
	must(t, s.Set("addr", "10.0.0.1", "--addr"))
	must(t, s.Set("addr", "10.0.0.2,10.0.0.3", "--addr"))
	if got := fmt.Sprint(s.Addrs, s.Origins); got != "[10.0.0.1 10.0.0.2 10.0.0.3] [{addr 10.0.0.1,10.0.0.2,10.0.0.3 --addr}]" {
		t.Errorf("three addresses in two flags are %s", got)
	}
	must(t, s.Set("impair", "rail=0,loss=1%", "--impair"))
	if err := s.Set("impair", "rail=0,delay=1ms", "--impair"); err == nil || !strings.Contains(err.Error(), "second entry for this rail") {
		t.Errorf("the same rail twice: got %v, want it refused", err)
	}
}

// TestFlagOverridesEnvironment: values set earlier take precedence over variables, and an empty
// variable counts as unset.
func TestFlagOverridesEnvironment(t *testing.T) {
	var s settings.Settings
	must(t, s.Set("tclass", "8", "--tclass"))
	must(t, s.ReadEnv(env(map[string]string{"IBVERBX_TCLASS": "nonsense", "IBVERBX_SL": "", "IBVERBX_RETRY": "2"})))
	if got := fmt.Sprint(s.Origins); s.Path.TrafficClass != 8 || got != "[{tclass 8 --tclass} {retry 2 IBVERBX_RETRY}]" {
		t.Errorf("given %s, traffic class %d, want 8 from the flag", got, s.Path.TrafficClass)
	}
}

// TestBadValues: an error names the variable, the value and the legal range, and no field is set.
func TestBadValues(t *testing.T) {
	bad := map[string][]string{
		"IBVERBX_TCLASS": {"256", "-1", "x", "1.5", "0x", "0x100"}, "IBVERBX_SL": {"16"}, "IBVERBX_PKEY_INDEX": {"65536"},
		"IBVERBX_GID_INDEX": {"256", "1,", ",", "1,x"}, "IBVERBX_HOP_LIMIT": {"0", "256"}, "IBVERBX_ACK_TIMEOUT": {"32"}, "IBVERBX_RETRY": {"8"},
		"IBVERBX_RNR_RETRY": {"8"}, "IBVERBX_RNR_TIMER": {"32"}, "IBVERBX_UC_PATHS": {"0", "257"}, "IBVERBX_UC_WINDOW": {"1", "99999999999999999999"},
		"IBVERBX_PROVIDER": {"x"}, "IBVERBX_ADDR": {"x", "1.2.3.4,"}, "IBVERBX_RAILS": {"0", "65"}, "IBVERBX_LANES": {"0", "4095"}, "IBVERBX_LINK": {"tcp"},
		"IBVERBX_TRANSPORT": {"raw"}, "IBVERBX_PEER_NETWORK": {"10.0.0.1"}, "IBVERBX_UNSEALED": {"yes"}, "IBVERBX_REQUIRE_SEALED": {"2"},
		"IBVERBX_SNAPLEN": {"0", "65536"}, "IBVERBX_UC_GIVE_UP": {"0", "1ms", "2h"},
	}
	for _, row := range settings.All() {
		if len(bad[row.Env]) == 0 && !slices.Contains([]string{"devices", "impair", "pcap", "pcap-wire"}, row.Name) { // any text, or TestImpair
			t.Errorf("no bad value of %s is tried", row.Env)
		}
		for _, value := range bad[row.Env] {
			var s settings.Settings
			err := s.ReadEnv(env(map[string]string{row.Env: value}))
			want := fmt.Sprintf("%s is %q: want %s", row.Env, value, row.Range)
			if !errors.Is(err, verbs.ErrInvalid) || err.Error() != want || len(s.Origins) != 0 {
				t.Errorf("%s=%s: got %v and %v, want %q and nothing set", row.Env, value, err, s.Origins, want)
			}
		}
	}
	var s settings.Settings
	if err := s.Set("none", "1", "--none"); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("Set of an unknown name = %v, want %v", err, verbs.ErrInvalid)
	}
}

// TestApply: rails get the path and their rows of GID tables. A port that lacks a row is an error that
// names the variable.
func TestApply(t *testing.T) {
	var rails []ibverbx.RailConfig
	link := softnic.NewMemoryLink(nil)
	for range 3 {
		nic, err := softnic.New(link, softnic.Config{})
		must(t, err)
		t.Cleanup(func() { must(t, nic.Close()) })
		ctx, err := nic.Open()
		must(t, err)
		rails = append(rails, ibverbx.RailConfig{Context: ctx})
	}
	for _, tt := range []struct {
		rows, pkey string
		want       []int
		err        string
	}{
		{"", "", []int{0, 0, 0}, ""},
		{"1", "", []int{1, 1, 1}, ""},
		{"0", "", []int{-1, -1, -1}, ""},
		{"1,0,1", "0", []int{1, -1, 1}, ""},
		{"1,0", "", nil, "IBVERBX_GID_INDEX 1,0: there are rows for 2 rails, and 3 rails"},
		{"9", "", nil, "IBVERBX_GID_INDEX 9: rail 0 (soft"},
		{"", "1", nil, "IBVERBX_PKEY_INDEX 1: rail 0 (soft"},
	} {
		var s settings.Settings
		must(t, s.ReadEnv(env(map[string]string{"IBVERBX_GID_INDEX": tt.rows, "IBVERBX_PKEY_INDEX": tt.pkey, "IBVERBX_SL": "2"})))
		err := s.Apply(rails)
		if tt.err != "" {
			if !errors.Is(err, verbs.ErrInvalid) || !strings.HasPrefix(err.Error(), tt.err) {
				t.Errorf("rows %s, P_Key %s: got %v, want %q", tt.rows, tt.pkey, err, tt.err)
			}
			continue
		}
		must(t, err)
		for i, row := range tt.want {
			if want := (verbs.PathConfig{SL: 2, GIDIndex: row}); rails[i].Path != want {
				t.Errorf("rows %s: the path of rail %d is %+v, want %+v", tt.rows, i, rails[i].Path, want)
			}
		}
	}
}
