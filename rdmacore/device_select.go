package rdmacore

import (
	"fmt"
	"strconv"
	"strings"

	"ibverbx/verbs"
)

// Choice is a device selected by a specification.
type Choice[D any] struct {
	// Device is the selected device.
	Device D
	// Port is the requested port; 0 means unspecified.
	Port int
}

// Select selects devices by name, in the syntax that RDMA programs share:
//
//	""                  all devices
//	"mlx5_0"            all devices whose name starts with mlx5_0
//	"mlx5_0:1"          the same, and port 1 of each
//	"mlx5_0:1,mlx5_2"   a list; the result has its order
//	"=mlx5_1,mlx5_3"    exactly these names, not mlx5_10
//	"^mlx5_3,rxe"       all devices except those whose names start with mlx5_3 or rxe
//	"^=mlx5_1"          all devices except mlx5_1
//
// A device appears once, or once per requested port. An entry without a match returns verbs.ErrNotFound
// and lists the devices; a malformed entry returns verbs.ErrInvalid. Entries after ^ may match nothing,
// but at least one device must remain.
func Select[D interface{ Name() string }](spec string, devices []D) ([]Choice[D], error) {
	const op = "select devices"
	s, err := parseSpec(spec)
	if err != nil {
		return nil, verbs.NewOpError(op, "", 0, fmt.Errorf("%q: %w", spec, err))
	}
	chosen, err := choose(s, devices)
	if err != nil {
		return nil, verbs.NewOpError(op, "", 0, fmt.Errorf("%q: %w", spec, err))
	}
	return chosen, nil
}

// spec is a parsed specification.
type spec struct {
	exclude, exact bool
	entries        []specEntry // empty means all devices
}

type specEntry struct {
	name string
	port int // 0 if unspecified
}

func parseSpec(text string) (s spec, err error) {
	rest := strings.TrimSpace(text)
	rest, s.exclude = strings.CutPrefix(rest, "^")
	rest, s.exact = strings.CutPrefix(rest, "=")
	if rest == "" && !s.exclude && !s.exact {
		return s, nil
	}
	for _, field := range strings.Split(rest, ",") {
		e, err := parseEntry(strings.TrimSpace(field))
		if err != nil {
			return spec{}, err
		}
		if s.exclude && e.port != 0 {
			return spec{}, verbs.Invalidf("%q excludes a port: only whole devices can be excluded", field)
		}
		s.entries = append(s.entries, e)
	}
	return s, nil
}

func parseEntry(field string) (specEntry, error) {
	name, port, hasPort := strings.Cut(field, ":")
	if name == "" {
		return specEntry{}, verbs.Invalidf("an entry without a name: want name or name:port, separated by commas")
	}
	if strings.ContainsAny(name, "^= \t") {
		return specEntry{}, verbs.Invalidf("%q: ^ and = are only allowed at the start of a list, and names have no spaces", field)
	}
	if !hasPort {
		return specEntry{name: name}, nil
	}
	n, err := strconv.ParseUint(port, 10, 8)
	if err != nil || n == 0 {
		return specEntry{}, verbs.Invalidf("%q: the port is %q, want 1 to 255", field, port)
	}
	return specEntry{name: name, port: int(n)}, nil
}

func (s *spec) matches(e specEntry, name string) bool {
	if s.exact {
		return name == e.name
	}
	return strings.HasPrefix(name, e.name)
}

// choose applies a specification to the devices.
func choose[D interface{ Name() string }](s spec, devices []D) ([]Choice[D], error) {
	var chosen []Choice[D]
	if s.exclude || len(s.entries) == 0 {
		for _, d := range devices {
			if !s.excludes(d.Name()) {
				chosen = append(chosen, Choice[D]{Device: d})
			}
		}
		if len(chosen) == 0 {
			return nil, fmt.Errorf("%w: every device is excluded: %s", verbs.ErrNotFound, names(devices))
		}
		return chosen, nil
	}
	taken := map[specEntry]bool{} // port 0: the device was chosen with or without a port
	for _, e := range s.entries {
		found := false
		for _, d := range devices {
			if !s.matches(e, d.Name()) {
				continue
			}
			found = true
			key, any := specEntry{d.Name(), e.port}, specEntry{name: d.Name()}
			whole := specEntry{d.Name(), -1} // the device was chosen without a port
			if taken[key] || taken[whole] || e.port == 0 && taken[any] {
				continue
			}
			taken[key], taken[any] = true, true
			taken[whole] = taken[whole] || e.port == 0
			chosen = append(chosen, Choice[D]{Device: d, Port: e.port})
		}
		if !found {
			return nil, fmt.Errorf("%w: no device matches %q; there are %s", verbs.ErrNotFound, e.name, names(devices))
		}
	}
	return chosen, nil
}

func (s *spec) excludes(name string) bool {
	for _, e := range s.entries {
		if s.matches(e, name) {
			return true
		}
	}
	return false
}

func names[D interface{ Name() string }](devices []D) string {
	if len(devices) == 0 {
		return "none"
	}
	all := make([]string, len(devices))
	for i, d := range devices {
		all[i] = d.Name()
	}
	return strings.Join(all, ", ")
}
