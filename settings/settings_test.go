package settings_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/rig"
	"ibverbx/settings"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// must ends the test after an error.
var must = rig.Must

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
	if !settings.Reserved("IBVERBX_SEED") || !settings.Reserved("IBVERBX_TEST_HOST") || settings.Reserved("IBVERBX_SEEDS") {
		t.Error("Reserved: want the variables of tests and no others")
	}
}

// TestReadEnv: every variable reaches its field, also an explicit 0.
func TestReadEnv(t *testing.T) {
	var s settings.Settings
	must(t, s.ReadEnv(env(map[string]string{
		"IBVERBX_TCLASS": "0x68", "IBVERBX_SL": "3", "IBVERBX_PKEY_INDEX": "7", "IBVERBX_GID_INDEX": "3, 0", "IBVERBX_HOP_LIMIT": "9",
		"IBVERBX_ACK_TIMEOUT": "0", "IBVERBX_RETRY": "0", "IBVERBX_RNR_RETRY": "0", "IBVERBX_RNR_TIMER": "0",
		"IBVERBX_UC_PATHS": "4", "IBVERBX_UC_WINDOW": "65536", "IBVERBX_UC_GIVE_UP": "2s",
		"IBVERBX_SEED": "x", "OTHER": "y",
	})))
	want := verbs.PathConfig{TrafficClass: 104, SL: 3, PKeyIndex: 7, HopLimit: 9, AckTimeout: -1, RetryCount: -1, RNRRetry: -1, MinRNRTimer: -1}
	if s.Path != want || fmt.Sprint(s.GIDIndex) != "[3 0]" {
		t.Errorf("the path is %+v with rows %v, want %+v with 3 and 0", s.Path, s.GIDIndex, want)
	}
	r := &s.Reliable
	if r.Paths != 4 || r.WindowBytes != 65536 || r.GiveUp != int64(2*time.Second) {
		t.Errorf("the configuration of reliable is %+v", r)
	}
	if len(s.Origins) != len(settings.All()) || s.Origins[0] != (settings.Origin{Name: "tclass", Value: "0x68", From: "IBVERBX_TCLASS"}) {
		t.Errorf("given %+v, want every setting, in order", s.Origins)
	}
}

// TestFlagOverridesEnvironment: what was set before stays, whatever the variable says, and an empty
// variable is not set.
func TestFlagOverridesEnvironment(t *testing.T) {
	var s settings.Settings
	must(t, s.Set("tclass", "8", "--tclass"))
	must(t, s.ReadEnv(env(map[string]string{"IBVERBX_TCLASS": "nonsense", "IBVERBX_SL": "", "IBVERBX_RETRY": "2"})))
	if got := fmt.Sprint(s.Origins); s.Path.TrafficClass != 8 || got != "[{tclass 8 --tclass} {retry 2 IBVERBX_RETRY}]" {
		t.Errorf("given %s, traffic class %d, want 8 from the flag", got, s.Path.TrafficClass)
	}
}

// TestBadValues: an error names the variable, the value and the legal range, and nothing is set.
func TestBadValues(t *testing.T) {
	bad := map[string][]string{
		"IBVERBX_TCLASS": {"256", "-1", "x", "1.5", "0x", "0x100"}, "IBVERBX_SL": {"16"}, "IBVERBX_PKEY_INDEX": {"65536"},
		"IBVERBX_GID_INDEX": {"256", "1,", ",", "1,x"}, "IBVERBX_HOP_LIMIT": {"0", "256"}, "IBVERBX_ACK_TIMEOUT": {"32"}, "IBVERBX_RETRY": {"8"},
		"IBVERBX_RNR_RETRY": {"8"}, "IBVERBX_RNR_TIMER": {"32"}, "IBVERBX_UC_PATHS": {"0", "257"}, "IBVERBX_UC_WINDOW": {"1", "99999999999999999999"},
		"IBVERBX_UC_GIVE_UP": {"0", "1ms", "2h"},
	}
	for _, row := range settings.All() {
		if len(bad[row.Env]) == 0 {
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
		{"1,0", "", nil, "IBVERBX_GID_INDEX 1,0 has rows for 2 rails, and there are 3"},
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
