// Package settings defines the operator's settings for a fabric: quality of service, addresses, retries, and the transport of package
// reliable. Each setting has a name, which is also its flag in the ibverbx tool, and an environment variable. The packages of this module
// never read the environment themselves. A program that supports the variables calls ReadEnv:
//
//	var s settings.Settings
//	err := s.ReadEnv(os.LookupEnv)
//	err = s.Apply(rails) // before ibverbx.NewRails
//
// Settings are not safe for concurrent use.
package settings

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"ibverbx"
	"ibverbx/reliable"
	"ibverbx/verbs"
)

// Settings holds the operator's values. The zero value leaves every setting at its default.
type Settings struct {
	// Path applies to every rail, except its GIDIndex: see Settings.GIDIndex.
	Path verbs.PathConfig
	// GIDIndex holds GID table indexes: one per rail, or one for all rails. If it is empty, the provider chooses.
	GIDIndex []int
	// Reliable is the configuration for reliable.Wrap.
	Reliable reliable.Config
	// Origins lists the values set, in the order of All.
	Origins []Origin
}

// Origin records where a setting was set.
type Origin struct {
	// Name is Setting.Name.
	Name string `json:"name"`
	// Value is the original text.
	Value string `json:"value"`
	// From is the flag or environment variable that set it.
	From string `json:"from"`
}

// Set parses value and sets the setting with that name; a later call overrides an earlier one. from is the flag or variable, for error
// messages. Set returns a *ValueError for an illegal value, and verbs.ErrInvalid for an unknown name.
func (s *Settings) Set(name, value, from string) error {
	i := order(name)
	if i < 0 {
		return verbs.Invalidf("there is no setting %q", name)
	}
	if !table[i].set(s, strings.TrimSpace(value)) {
		return &ValueError{From: from, Value: value, Want: table[i].Range}
	}
	s.Origins = slices.DeleteFunc(s.Origins, func(g Origin) bool { return g.Name == name })
	s.Origins = append(s.Origins, Origin{Name: name, Value: value, From: from})
	slices.SortFunc(s.Origins, func(a, b Origin) int { return cmp.Compare(order(a.Name), order(b.Name)) })
	return nil
}

// order returns the index of a setting in All, or -1.
func order(name string) int {
	return slices.IndexFunc(table, func(row Setting) bool { return row.Name == name })
}

// ValueError means that the value of a setting is illegal. It wraps verbs.ErrInvalid.
type ValueError struct {
	// From is the flag or environment variable.
	From string
	// Value is the rejected text.
	Value string
	// Want is Setting.Range.
	Want string
}

// Error implements error.
func (e *ValueError) Error() string { return fmt.Sprintf("%s is %q: want %s", e.From, e.Value, e.Want) }

// Unwrap returns verbs.ErrInvalid.
func (e *ValueError) Unwrap() error { return verbs.ErrInvalid }

// ReadEnv sets every setting whose environment variable is set and not empty. Settings that are already set keep their values, so flags
// override the environment. lookup is usually os.LookupEnv. The first illegal value stops ReadEnv with a *ValueError, which contains the
// variable and the legal range.
func (s *Settings) ReadEnv(lookup func(string) (string, bool)) error {
	if lookup == nil {
		return verbs.Invalidf("lookup is nil: use os.LookupEnv")
	}
	for _, row := range table {
		value, ok := lookup(row.Env)
		if !ok || value == "" || slices.ContainsFunc(s.Origins, func(g Origin) bool { return g.Name == row.Name }) {
			continue
		}
		if err := s.Set(row.Name, value, row.Env); err != nil {
			return err
		}
	}
	return nil
}

// Apply sets the Path of open rails. It returns verbs.ErrInvalid if GIDIndex has several values but fewer than rails, and an error that
// names the flag or variable if a port lacks the selected table entry.
func (s *Settings) Apply(rails []ibverbx.RailConfig) error {
	if n := len(s.GIDIndex); n > 1 && n < len(rails) {
		return fmt.Errorf("%s has rows for %d rails, and there are %d: %w", s.from("gid-index"), n, len(rails), verbs.ErrInvalid)
	}
	for i := range rails {
		r := &rails[i]
		r.Path = s.Path
		if n := len(s.GIDIndex); n > 0 {
			r.Path.GIDIndex = cmp.Or(s.GIDIndex[min(i, n-1)], verbs.ExplicitZero)
		}
		port, err := r.Context.QueryPort(int(max(r.Port, 1)))
		if err != nil {
			return err
		}
		if _, err := r.Path.Check(&port, r.GID); err != nil {
			return fmt.Errorf("%s: rail %d (%s): %w", s.from("gid-index", "pkey-index"), i, r.Context.Device().Name(), err)
		}
	}
	return nil
}

// from lists the origins of the given settings. Others cannot be valid for one port and invalid for another.
func (s *Settings) from(names ...string) string {
	var list []string
	for _, g := range s.Origins {
		if slices.Contains(names, g.Name) {
			list = append(list, g.From+" "+g.Value)
		}
	}
	return strings.Join(list, ", ")
}
