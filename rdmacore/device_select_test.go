package rdmacore_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"ibverbx/rdmacore"
	"ibverbx/verbs"
)

type named string

func (n named) Name() string { return string(n) }

func TestSelect(t *testing.T) {
	devices := []named{"mlx5_0", "mlx5_1", "mlx5_10", "rxe0"}
	tests := []struct {
		spec string
		want string // name:port, without :0
		err  error
	}{
		{"", "mlx5_0 mlx5_1 mlx5_10 rxe0", nil},
		{"  ", "mlx5_0 mlx5_1 mlx5_10 rxe0", nil},
		{"mlx5_0", "mlx5_0", nil},
		{"mlx5_1", "mlx5_1 mlx5_10", nil}, // every match, not only the first
		{"mlx5", "mlx5_0 mlx5_1 mlx5_10", nil},
		{"mlx5_0:1", "mlx5_0:1", nil},
		{"mlx5_1:2", "mlx5_1:2 mlx5_10:2", nil},
		{"rxe0,mlx5_0", "rxe0 mlx5_0", nil},
		{" rxe0 , mlx5_0:1 ", "rxe0 mlx5_0:1", nil},
		{"mlx5_0:1,mlx5_0:2", "mlx5_0:1 mlx5_0:2", nil},
		{"mlx5_0,mlx5", "mlx5_0 mlx5_1 mlx5_10", nil},
		{"mlx5_0,mlx5_0:1", "mlx5_0", nil},
		{"mlx5_0:1,mlx5_0", "mlx5_0:1", nil},
		{"mlx5_0:1,mlx5_0:1", "mlx5_0:1", nil},
		{"=mlx5_1", "mlx5_1", nil},
		{"=mlx5_1:1,rxe0", "mlx5_1:1 rxe0", nil},
		{"=mlx5", "", verbs.ErrNotFound},
		{"^mlx5_1", "mlx5_0 rxe0", nil},
		{"^mlx5_0,mlx5_1", "rxe0", nil}, // the list cannot include an excluded device again
		{"^=mlx5_1", "mlx5_0 mlx5_10 rxe0", nil},
		{"^eth", "mlx5_0 mlx5_1 mlx5_10 rxe0", nil},
		{"^mlx5,rxe", "", verbs.ErrNotFound},
		{"mlx4_0", "", verbs.ErrNotFound},
		{"mlx5_0,mlx4_0", "", verbs.ErrNotFound},
		{"^", "", verbs.ErrInvalid},
		{"=", "", verbs.ErrInvalid},
		{",", "", verbs.ErrInvalid},
		{"mlx5_0,", "", verbs.ErrInvalid},
		{":1", "", verbs.ErrInvalid},
		{"a:b:c", "", verbs.ErrInvalid},
		{"mlx5_0:1:2", "", verbs.ErrInvalid},
		{"mlx5_0:", "", verbs.ErrInvalid},
		{"mlx5_0:x", "", verbs.ErrInvalid},
		{"mlx5_0:0", "", verbs.ErrInvalid},
		{"mlx5_0:256", "", verbs.ErrInvalid},
		{"mlx5_0:-1", "", verbs.ErrInvalid},
		{"mlx5_0:99999999999999999999", "", verbs.ErrInvalid},
		{"=^mlx5_0", "", verbs.ErrInvalid},
		{"mlx5_0,^rxe0", "", verbs.ErrInvalid},
		{"^mlx5_0:1", "", verbs.ErrInvalid},
		{"mlx5 0", "", verbs.ErrInvalid},
	}
	for _, tt := range tests {
		got, err := rdmacore.Select(tt.spec, devices)
		if !errors.Is(err, tt.err) || (err == nil) != (tt.err == nil) {
			t.Errorf("Select(%q) = %v, want an error that wraps %v", tt.spec, err, tt.err)
		}
		if s := choices(got); s != tt.want {
			t.Errorf("Select(%q) = %q, want %q", tt.spec, s, tt.want)
		}
	}
}

func choices(cs []rdmacore.Choice[named]) string {
	var parts []string
	for _, c := range cs {
		s := c.Device.Name()
		if c.Port != 0 {
			s += fmt.Sprintf(":%d", c.Port)
		}
		parts = append(parts, s)
	}
	return strings.Join(parts, " ")
}

// The error lists the devices.
func TestSelectNamesDevices(t *testing.T) {
	_, err := rdmacore.Select("mlx4_0", []named{"rxe0", "rxe1"})
	if err == nil || !strings.Contains(err.Error(), "rxe0, rxe1") || !strings.Contains(err.Error(), "mlx4_0") {
		t.Errorf("Select of a device that is not there = %v, want the devices in the error", err)
	}
	if _, err := rdmacore.Select("", []named{}); !errors.Is(err, verbs.ErrNotFound) {
		t.Errorf("Select among no devices = %v, want ErrNotFound", err)
	}
}

// For any specification, the choice contains existing devices only, none twice, and none excluded
// by ^.
func FuzzSelect(f *testing.F) {
	for _, s := range []string{"", "mlx5_0:1", "a,b", "^a,b", "=a", "^=a", "a:b:c", "mlx5_0:1,mlx5_0", ":::", "^,=", "a:255,a"} {
		f.Add(s, "mlx5_0 mlx5_1 mlx5_10 a ab b")
	}
	f.Fuzz(func(t *testing.T, spec, list string) {
		var devices []named
		for _, n := range strings.Fields(list) {
			if !slices.Contains(devices, named(n)) {
				devices = append(devices, named(n))
			}
		}
		got, err := rdmacore.Select(spec, devices)
		if err != nil {
			if got != nil || !errors.Is(err, verbs.ErrInvalid) && !errors.Is(err, verbs.ErrNotFound) {
				t.Fatalf("Select(%q) = %v, %v, want no choice and a known error", spec, got, err)
			}
			return
		}
		if len(got) == 0 {
			t.Fatalf("Select(%q) = none without an error", spec)
		}
		type pick struct {
			name string
			port int
		}
		seen := map[pick]bool{}
		for _, c := range got {
			p := pick{c.Device.Name(), c.Port}
			if seen[p] || seen[pick{p.name, 0}] || !slices.Contains(devices, c.Device) || c.Port < 0 || c.Port > 255 {
				t.Fatalf("Select(%q) = %v: %v appears twice, is no device or has no such port", spec, got, p)
			}
			seen[p] = true
		}
		if names, ok := strings.CutPrefix(strings.TrimSpace(spec), "^"); ok && !strings.HasPrefix(names, "=") {
			for _, name := range strings.Split(names, ",") {
				for _, c := range got {
					if strings.HasPrefix(c.Device.Name(), strings.TrimSpace(name)) {
						t.Fatalf("Select(%q) = %v, which has %s", spec, got, c.Device)
					}
				}
			}
		}
	})
}
