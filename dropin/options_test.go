package dropin_test

import (
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"ibverbx/dropin"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// lookup returns a function that finds variables in a list.
func lookup(env []string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		for _, v := range env {
			if value, ok := strings.CutPrefix(v, name+"="); ok {
				return value, true
			}
		}
		return "", false
	}
}

// TestOptionsTravel: ReadEnv parses the variables that Env returns.
func TestOptionsTravel(t *testing.T) {
	for _, want := range []dropin.Options{
		{},
		{Devices: 3, MTU: verbs.MTU1024, AnyPeer: true, PortGIDs: true, OnlyPackets: true, Capture: "/tmp/%p.pcap", Stats: true, Verbose: true},
		{Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::2")}},
		{Impairment: softnic.Impairment{Loss: 0.001, Reorder: 0.5, Delay: 50 * time.Microsecond}},
		{Impairment: softnic.Impairment{Duplicate: 0.01, Corrupt: 1e-9, Jitter: time.Millisecond, Rate: 125e6}},
		{SharedMemory: true},
	} {
		env := want.Env()
		var got dropin.Options
		if err := got.ReadEnv(lookup(env)); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("ReadEnv(%q) = %+v, %v, want %+v", env, got, err, want)
		}
	}
}

// TestOptionsInWords: percentages and spaces are accepted, and empty variables are ignored.
func TestOptionsInWords(t *testing.T) {
	var o dropin.Options
	err := o.ReadEnv(lookup([]string{"IBVERBX_LOSS= 0.1%", "IBVERBX_ADDR=127.0.0.9, 127.0.0.8", "IBVERBX_MTU=", "IBVERBX_PEERS=softnic"}))
	if err != nil || o.Impairment.Loss != 0.001 || len(o.Addrs) != 2 || o.MTU != 0 || o.AnyPeer {
		t.Errorf("ReadEnv = %+v, %v", o, err)
	}
	if err := o.Set("ADDR", "::ffff:127.0.0.9"); err != nil || o.Addrs[0] != netip.MustParseAddr("127.0.0.9") {
		t.Errorf("::ffff:127.0.0.9 is read as %v, %v, want the IPv4 address", o.Addrs, err)
	}
}

// TestBadOptions: an invalid value is rejected, and the error names the variable and its valid
// values.
func TestBadOptions(t *testing.T) {
	for _, v := range []string{
		"ADDR=host", "ADDR=fe80::1%eth0", "COUNT=0", "COUNT=17", "COUNT=x", "MTU=1500", "PEERS=hardware", "LINK=tcp", "GIDS=ipv6", "LOSS=2", "LOSS=-1%",
		"LOSS=NaN", "REORDER=101%", "DELAY=5", "DELAY=-1s", "DELAY=2h", "STATS=maybe", "DUPLICATE=2",
		"CORRUPT=x", "JITTER=5", "RATE=-1", "RATE=NaN", "RATE=1e300",
	} {
		var o dropin.Options
		name, _, _ := strings.Cut(v, "=")
		if err := o.ReadEnv(lookup([]string{"IBVERBX_" + v})); err == nil || !strings.Contains(err.Error(), "IBVERBX_"+name) {
			t.Errorf("ReadEnv with %s = %v, want an error that names the variable", v, err)
		}
	}
	for want, env := range map[string][]string{
		"IBVERBX_COUNT=1: use at least 2, one device per address":        {"IBVERBX_COUNT=1", "IBVERBX_ADDR=127.0.0.9,127.0.0.8"},
		"IBVERBX_COUNT=2: use at least 3, one device per address":        {"IBVERBX_COUNT=2", "IBVERBX_ADDR=127.0.0.9,127.0.0.8,127.0.0.7"},
		"IBVERBX_LINK=shm: use udp or auto to capture or impair packets": {"IBVERBX_LINK=shm", "IBVERBX_LOSS=1%"},
		"IBVERBX_LINK=tcp: use auto, shm or udp":                         {"IBVERBX_LINK=tcp"},
	} {
		var o dropin.Options
		if err := o.ReadEnv(lookup(env)); err == nil || err.Error() != want {
			t.Errorf("ReadEnv(%q) = %v, want %s", env, err, want)
		}
	}
	var o dropin.Options
	if err := o.Set("NONE", "1"); err == nil {
		t.Error("an option that does not exist was accepted")
	}
}

// TestVariables: the list for documents and doctor contains every variable that Env writes.
func TestVariables(t *testing.T) {
	names := dropin.Variables()
	all := dropin.Options{
		Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, Devices: 1, MTU: 1, AnyPeer: true, PortGIDs: true, OnlyPackets: true, Capture: "x", Stats: true, Verbose: true, Metrics: ":9400",
		Impairment: softnic.Impairment{Loss: 1, Reorder: 1, Duplicate: 1, Corrupt: 1, Delay: 1, Jitter: 1, Rate: 1},
	}
	for _, v := range all.Env() {
		if name, _, _ := strings.Cut(v, "="); !slices.Contains(names, name) {
			t.Errorf("%s is not in Variables", name)
		}
	}
	if got, want := len(all.Env()), len(names)-1; got != want || !slices.Contains(names, dropin.LibraryVariable) {
		t.Errorf("%d variables in Env and %d in Variables, want one more there: the library", got, len(names))
	}
}

// TestOptionsCount: IBVERBX_COUNT is the number of devices. IBVERBX_DEVICES names real NICs for other commands.
func TestOptionsCount(t *testing.T) {
	for _, tt := range []struct {
		env  []string
		want int
	}{
		{nil, 0},
		{[]string{"IBVERBX_COUNT=3"}, 3},
		{[]string{"IBVERBX_COUNT=", "IBVERBX_DEVICES=mlx5_0"}, 0},
	} {
		var o dropin.Options
		if err := o.ReadEnv(lookup(tt.env)); err != nil || o.Devices != tt.want {
			t.Errorf("ReadEnv(%q): %d devices, %v, want %d", tt.env, o.Devices, err, tt.want)
		}
	}
}
