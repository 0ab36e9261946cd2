// Package settings defines the operator's settings: the NICs and their rails, quality of service, addresses, retries, and the transport. Each
// setting fills a field of peer.Fabric, which peer.Config and node.Config contain. Its name is also its flag in the ibverbx tool, and it has an
// environment variable. The tool and the NCCL plugin read the variables; other programs call ReadEnv:
//
//	var s settings.Settings
//	err := s.ReadEnv(os.LookupEnv)
//	n, err := node.New(ctx, node.Config{Auth: auth, Fabric: s.Fabric})
//	err = s.Explain(err) // names the variable of a wrong value
//
// The drop-in reads IBVERBX_ADDR, IBVERBX_LINK and IBVERBX_PCAP without this package (dropin.Options).
//
// Settings are not safe for concurrent use. Names, variables and ranges (definitions.go) are the operator's interface: add settings and values, but
// do not rename or remove them.
package settings

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"ibverbx"
	"ibverbx/peer"
	"ibverbx/verbs"
)

// Settings holds the operator's values. The zero value leaves every setting at its default.
type Settings struct {
	// Fabric holds the values, except Capture: see Settings.Captures.
	peer.Fabric
	// Captures names the files for Fabric.Capture. The program opens them with peer.NewCapture.
	Captures peer.CaptureConfig
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

// Set parses value and sets the setting with that name; a later call overrides an earlier one. Values of a Setting with Join accumulate if
// from is the same. from is the flag or variable, for error messages. Set returns a *ValueError for an illegal value, and verbs.ErrInvalid for
// an unknown name; the settings then stay as they were.
func (s *Settings) Set(name, value, from string) error {
	i := order(name)
	if i < 0 {
		return verbs.Invalidf("there is no setting %q", name)
	}
	row := &table[i]
	set := Origin{Name: name, Value: value, From: from}
	if old := s.origin(name); old != nil && old.From == from && row.Join != "" {
		set.Value = old.Value + row.Join + value
	}
	if why, ok := row.set(s, strings.TrimSpace(set.Value)); !ok {
		return &ValueError{From: from, Value: value, Want: cmp.Or(why, row.Range)}
	}
	s.Origins = slices.DeleteFunc(s.Origins, func(g Origin) bool { return g.Name == name })
	s.Origins = append(s.Origins, set)
	slices.SortFunc(s.Origins, func(a, b Origin) int { return cmp.Compare(order(a.Name), order(b.Name)) })
	return nil
}

// origin returns the Origin of a setting, or nil if it is not set.
func (s *Settings) origin(name string) *Origin {
	if i := slices.IndexFunc(s.Origins, func(g Origin) bool { return g.Name == name }); i >= 0 {
		return &s.Origins[i]
	}
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
	// Want is Setting.Range, or describes the problem.
	Want string
}

// Error implements error.
func (e *ValueError) Error() string { return fmt.Sprintf("%s is %q: want %s", e.From, e.Value, e.Want) }

// Unwrap returns verbs.ErrInvalid.
func (e *ValueError) Unwrap() error { return verbs.ErrInvalid }

// ReadEnv sets every setting whose environment variable is set and not empty. Settings that are already set keep their values, so flags
// override the environment. lookup is usually os.LookupEnv. The first illegal value stops ReadEnv with a *ValueError, which contains the
// variable and the legal range. If lookup reads the environment of the process, each Unknown variable there is logged to slog.Default at WARN.
func (s *Settings) ReadEnv(lookup func(string) (string, bool)) error {
	if lookup == nil {
		return verbs.Invalidf("lookup is nil: use os.LookupEnv")
	}
	warnUnknown(lookup)
	for _, row := range table {
		value, ok := lookup(row.Env)
		if !ok || value == "" || s.origin(row.Name) != nil {
			continue
		}
		if err := s.Set(row.Name, value, row.Env); err != nil {
			return err
		}
	}
	return nil
}

// Apply sets the Path of open rails, for programs that open NICs without package peer. It returns an error that names the flag or variable if
// a port lacks the selected table entry, or if GIDIndex has several values but fewer than rails.
func (s *Settings) Apply(rails []ibverbx.RailConfig) error {
	f := s.Fabric
	f.Transport = ""
	for i := range rails {
		rails[i].Path = verbs.PathConfig{}
	}
	n := peer.NICs{Rails: rails}
	err := f.Prepare(&n)
	copy(rails, n.Rails)
	return s.Explain(err)
}

// Check returns an error that names the flags or variables if settings contradict each other.
func (s *Settings) Check() error {
	f := s.Fabric
	if s.Captures.Plain != "" && s.Captures.Plain == s.Captures.Wire {
		return s.Explain(&peer.FabricError{Field: "Captures.Wire", With: "Captures.Plain", Problem: "each needs its own file"})
	}
	if s.Captures.Plain+s.Captures.Wire != "" {
		f.Capture = &peer.Capture{}
	} else if s.Captures.SnapLen != 0 {
		return s.Explain(&peer.FabricError{Field: "Captures.SnapLen", Problem: "it needs a file for packets; add --pcap or --pcap-wire"})
	}
	return s.Explain(f.CheckFabric())
}

// Explain replaces the field names of a *peer.FabricError by flags or variables. It returns other errors unchanged.
func (s *Settings) Explain(err error) error {
	var wrong *peer.FabricError
	if !errors.As(err, &wrong) {
		return err
	}
	text := s.from(wrong.Field)
	if with := s.from(wrong.With); text != "" && with != "" {
		text += " with " + with
	}
	if text == "" {
		return err
	}
	return &explained{text + ": " + wrong.Problem, err}
}

// explained is an error with another text.
type explained struct {
	text  string
	cause error
}

func (e *explained) Error() string { return e.text }
func (e *explained) Unwrap() error { return e.cause }

// from lists the origins of a field's settings, or the flag of an unset one. Capture is the one of Captures.
func (s *Settings) from(field string) string {
	var list []string
	for _, g := range s.Origins {
		if of := table[order(g.Name)].Field; of == field || field == "Capture" && strings.HasPrefix(of, "Captures.") {
			list = append(list, strings.TrimSpace(g.From+" "+g.Value))
		}
	}
	if i := slices.IndexFunc(table, func(row Setting) bool { return row.Field == field }); len(list) == 0 && i >= 0 {
		return "--" + table[i].Name
	}
	return strings.Join(list, ", ")
}
