// Package settings has what an operator sets for a fabric: quality of service, addresses, retries,
// and the transport of package reliable. Each setting has a name, which is also its flag in the tool,
// and an environment variable. No package of this module reads the environment by itself. A program
// that wants the variables calls ReadEnv:
//
//	var s settings.Settings
//	err := s.ReadEnv(os.LookupEnv)
//	err = s.Apply(rails) // before ibverbx.NewRails
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

// Settings are values that were set. The zero value has none: everything has its default.
type Settings struct {
	// Path is for every rail. Its GIDIndex is not used: see GIDIndex.
	Path verbs.PathConfig
	// GIDIndex are rows of GID tables: one for each rail, or one for all. Empty means that the
	// provider chooses.
	GIDIndex []int
	// Reliable is for reliable.Wrap.
	Reliable reliable.Config
	// Origins lists what was set, in the order of All.
	Origins []Origin
}

// Origin is a setting that was set.
type Origin struct {
	// Name is Setting.Name.
	Name string `json:"name"`
	// Value is the text that was given.
	Value string `json:"value"`
	// From is where it was given: a flag or a variable.
	From string `json:"from"`
}

// Set sets the setting of that name. from is the flag or the variable that an error names.
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

// order is the position of a setting in All, -1 if there is none of that name.
func order(name string) int {
	return slices.IndexFunc(table, func(row Setting) bool { return row.Name == name })
}

// ValueError refuses the value of a setting.
type ValueError struct {
	// From is the flag or the variable.
	From  string
	Value string
	// Want is Setting.Range.
	Want string
}

// Error implements error.
func (e *ValueError) Error() string { return fmt.Sprintf("%s is %q: want %s", e.From, e.Value, e.Want) }

// Unwrap returns verbs.ErrInvalid.
func (e *ValueError) Unwrap() error { return verbs.ErrInvalid }

// ReadEnv sets every setting whose variable is set and not empty. Settings that were set before keep
// their values: a flag overrides the environment. The error names the variable and the legal range.
// lookup is os.LookupEnv.
func (s *Settings) ReadEnv(lookup func(string) (string, bool)) error {
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

// Apply sets the paths of open rails. The error names the flag or the variable if a port does not
// have the rows of its tables that were chosen.
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

// from lists where settings were given: the others cannot be wrong for one port and right for
// another.
func (s *Settings) from(names ...string) string {
	var list []string
	for _, g := range s.Origins {
		if slices.Contains(names, g.Name) {
			list = append(list, g.From+" "+g.Value)
		}
	}
	return strings.Join(list, ", ")
}
