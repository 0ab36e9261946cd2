package sim

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Scenario is a text that fixes part of a world. A seed determines the rest. It is read-only after Parse
// and safe for concurrent use.
type Scenario struct {
	// Name is the scenario's name.
	Name  string
	About string // one sentence from the text

	pins   map[string]pinned // settings by place and name, such as "loss" or "rail 1 loss"
	ops    OpSet
	kinds  []FaultKind // kinds of random faults, empty for the default
	faults []faultLine
	expect Expectation
	sweeps []sweep
	text   string
}

// faultLine is a fault of a scenario.
type faultLine struct {
	kind FaultKind
	end  int               // index of the end, -1 if it is drawn
	pins map[string]pinned // settings by name
}

// sweep runs the scenario once for every value of a variable.
type sweep struct {
	word string // name of the variable, without $
	from int    // first value
	to   int    // last value
}

// Parse parses a scenario. Errors name the line.
func Parse(name, text string) (*Scenario, error) {
	s := &Scenario{Name: name, pins: make(map[string]pinned), text: text, ops: allOps}
	for _, sweeps := range []bool{true, false} { // values of sweeps may be used before their lines
		for i, line := range strings.Split(text, "\n") {
			line, _, _ = strings.Cut(line, "#")
			words := strings.Fields(line)
			if len(words) == 0 || (words[0] == "sweep") != sweeps {
				continue
			}
			if err := s.line(words); err != nil {
				return nil, fmt.Errorf("scenario %s, line %d: %w", name, i+1, err)
			}
		}
	}
	return s, nil
}

func (s *Scenario) line(words []string) (err error) {
	switch words[0] {
	case "about":
		s.About = strings.Join(words[1:], " ")
		return nil
	case "ops":
		s.ops, err = parseOps(words[1:])
		return err
	case "expect":
		if len(words) != 2 {
			return fmt.Errorf("expect takes one of %s", strings.Join(expectNames[:], ", "))
		}
		v, err := parseName(words[1], expectNames[:])
		s.expect = Expectation(v)
		return err
	case "fault-kinds":
		for _, word := range words[1:] {
			k, ok := faultNamed(word)
			if !ok {
				return noFault(word)
			}
			s.kinds = append(s.kinds, k)
		}
		return nil
	case "fault":
		return s.fault(words[1:])
	case "sweep":
		return s.parseSweep(words[1:])
	case "rail", "connection", "end":
		return s.scoped(words)
	}
	for _, list := range scopes {
		if settingNamed(list, words[0]) != nil {
			return s.pin("", list, words)
		}
	}
	return fmt.Errorf("there is no setting %q: see docs/reliability.md for the list", words[0])
}

func noFault(word string) error {
	var names []string
	for k := range numFaults {
		names = append(names, k.String())
	}
	return fmt.Errorf("there is no fault %q: want one of %s", word, strings.Join(names, ", "))
}

func parseOps(words []string) (ops OpSet, err error) {
	for _, word := range words {
		v, err := parseName(word, opNames[:])
		if err != nil {
			return 0, err
		}
		ops |= 1 << v
	}
	if ops == 0 {
		return 0, fmt.Errorf("ops takes some of %s", strings.Join(opNames[:], ", "))
	}
	return ops, nil
}

// scoped parses settings of one rail, connection or end.
func (s *Scenario) scoped(words []string) error {
	if len(words) < 4 {
		return fmt.Errorf("%s takes its number and settings: pairs of a name and a value", words[0])
	}
	list := map[string][]setting{"rail": slices.Concat(railSettings, transportSettings), "connection": connectSettings, "end": endSettings}[words[0]]
	if words[0] == "end" {
		if _, err := parseEnd(words[1]); err != nil {
			return err
		}
	} else if n, err := strconv.Atoi(words[1]); err != nil || n < 0 {
		return fmt.Errorf("%s %q: want its number, from 0", words[0], words[1])
	}
	return s.pin(words[0]+" "+words[1]+" ", list, words[2:])
}

// parseEnd parses the name of an end: the number of its connection, and a or b.
func parseEnd(word string) (int, error) {
	if n := len(word); n >= 2 && (word[n-1] == 'a' || word[n-1] == 'b') {
		if i, err := strconv.Atoi(word[:n-1]); err == nil && i >= 0 {
			return 2*i + int(word[n-1]-'a'), nil
		}
	}
	return 0, fmt.Errorf("end %q: want the number of a connection, and a or b, such as 0a", word)
}

// pin parses pairs of names and values.
func (s *Scenario) pin(place string, list []setting, words []string) error {
	return s.parsePins(list, words, func(set *setting, p pinned) { s.pins[place+set.name] = p })
}

func (s *Scenario) parsePins(list []setting, words []string, put func(*setting, pinned)) error {
	for ; len(words) > 0; words = words[2:] {
		set := settingNamed(list, words[0])
		if set == nil {
			return fmt.Errorf("there is no setting %q here", words[0])
		}
		if len(words) == 1 {
			return fmt.Errorf("%s has no value", words[0])
		}
		if slices.ContainsFunc(s.sweeps, func(w sweep) bool { return strings.HasPrefix(words[1], "$"+w.word) }) {
			continue // Plans parses it again with a value.
		}
		p, err := parsePin(set.unit, words[1])
		if err != nil {
			return fmt.Errorf("%s: %w", words[0], err)
		}
		if p.low < set.low || p.high > set.high {
			return fmt.Errorf("%s %s: want %s to %s", words[0], words[1], formatValue(set.unit, set.low), formatValue(set.unit, set.high))
		}
		put(set, p)
	}
	return nil
}

// fault parses a fault with its place and time.
func (s *Scenario) fault(words []string) error {
	if len(words) == 0 {
		return fmt.Errorf("fault takes a kind")
	}
	kind, ok := faultNamed(words[0])
	if !ok {
		return noFault(words[0])
	}
	f := faultLine{kind: kind, end: -1, pins: make(map[string]pinned)}
	rest := words[1:]
	if len(rest) >= 2 && rest[0] == "end" {
		end, err := parseEnd(rest[1])
		if err != nil {
			return err
		}
		f.end = end
		rest = rest[2:]
	}
	if err := s.parsePins(faultSettings, rest, func(set *setting, p pinned) { f.pins[set.name] = p }); err != nil {
		return err
	}
	s.faults = append(s.faults, f)
	return nil
}

func (s *Scenario) parseSweep(words []string) error {
	if len(words) == 2 {
		if p, err := parsePin(unitCount, words[1]); err == nil && p.high-p.low < 4096 {
			s.sweeps = append(s.sweeps, sweep{word: words[0], from: int(p.low), to: int(p.high)})
			return nil
		}
	}
	return fmt.Errorf("sweep takes a word and a range of at most 4096 values, such as: sweep k 0..63")
}

// Plans returns the worlds of a seed: one, or one per value of a sweep, or one per pair of values of two
// sweeps. The same seed gives equal plans.
func (s *Scenario) Plans(seed uint64) ([]*Plan, error) {
	if len(s.sweeps) == 0 {
		return []*Plan{s.draw(seed)}, nil
	}
	texts := []string{s.text}
	for _, w := range s.sweeps {
		var more []string
		for _, text := range texts {
			for v := w.from; v <= w.to; v++ {
				more = append(more, strings.ReplaceAll(text, "$"+w.word, strconv.Itoa(v)))
			}
		}
		texts = more
	}
	var plans []*Plan
	for _, text := range texts {
		one, err := Parse(s.Name, text)
		if err != nil {
			return nil, err
		}
		plans = append(plans, one.draw(seed))
	}
	return plans, nil
}
