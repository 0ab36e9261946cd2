// Package filter includes and excludes paths of a directory tree, by rules with the meaning of rsync's. [New] parses the rules,
// and [Filter.Excludes] applies them to a path.
//
// A rule is "- PATTERN", "+ PATTERN" or "= PATH". The first rule with a matching pattern excludes or includes a path;
// without one, the path is included. The contents of an excluded directory are excluded. If the list contains "= PATH"
// rules, only these paths, everything below them and their parent directories are included.
//
// In a pattern, * matches any characters except slashes, ** any characters, ? one character except
// a slash, [a-z] one of a set, and a backslash makes the next character literal. A pattern with a
// leading slash matches from the top of the tree. Otherwise a pattern with a slash or ** matches at
// the end of a path, and one without either matches the last element. A pattern with a trailing
// slash matches directories only. A trailing /*** matches a directory and all its contents.
//
// Rules are sent to the peer, so their meaning is part of the protocol of package files: a change needs a new version there.
package filter

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
)

// MaxLen is the maximum length of all rules in bytes, including one byte per rule.
const MaxLen = 256 << 10

// ErrRule means that a rule is invalid.
var ErrRule = errors.New("want - PATTERN, + PATTERN or = PATH")

// Filter is a list of rules. The zero value includes everything. It is safe for concurrent use.
type Filter struct {
	rules []rule
	// paths maps the paths of "=" rules to true, and their parents to false. It is nil without such rules.
	paths map[string]bool
}

type rule struct {
	include bool
	pattern string
	// dirs is set if the pattern matches directories only, top if it matches from the top of the tree, and whole if it
	// matches a path rather than its last element.
	dirs, top, whole bool
}

// New returns the Filter of a list of rules.
func New(rules []string) (f Filter, err error) {
	size := 0
	for _, text := range rules {
		if size += len(text) + 1; size > MaxLen {
			return Filter{}, fmt.Errorf("the rules have more than %d bytes", MaxLen)
		}
		if len(text) < 3 || text[1] != ' ' || !strings.Contains("-+=", text[:1]) || strings.ContainsAny(text, "\n\x00") {
			return Filter{}, fmt.Errorf("filter rule %q: %w", text, ErrRule)
		}
		if text[0] != '=' {
			f.rules = append(f.rules, parse(text[0] == '+', text[2:]))
		} else if err := f.name(text[2:]); err != nil {
			return Filter{}, err
		}
	}
	return f, nil
}

// name adds the path of an "=" rule.
func (f *Filter) name(name string) error {
	if !fs.ValidPath(name) || name == "." {
		return fmt.Errorf("filter rule with the path %q: want a relative path without dots as elements", name)
	}
	if f.paths == nil {
		f.paths = map[string]bool{}
	}
	f.paths[name] = true
	for name = path.Dir(name); name != "."; name = path.Dir(name) {
		if _, known := f.paths[name]; known {
			break
		}
		f.paths[name] = false
	}
	return nil
}

// Paths returns the paths of "= PATH" rules that no pattern excludes, in any order.
func (f *Filter) Paths() (names []string) {
	patterns := Filter{rules: f.rules}
	for name, named := range f.paths {
		if named && !patterns.Excludes(name, false) {
			names = append(names, name)
		}
	}
	return names
}

// unnamed reports whether "=" rules exclude a path: it is not in f.paths, and not below one of the named paths.
func (f *Filter) unnamed(name string) bool {
	if f.paths == nil {
		return false
	}
	if _, known := f.paths[name]; known {
		return false
	}
	for name = path.Dir(name); name != "."; name = path.Dir(name) {
		if f.paths[name] {
			return false
		}
	}
	return true
}

func parse(include bool, pattern string) rule {
	r := rule{include: include}
	pattern, r.top = strings.CutPrefix(pattern, "/")
	if !strings.HasSuffix(pattern, "***") {
		pattern, r.dirs = strings.CutSuffix(pattern, "/")
	}
	r.pattern = pattern
	r.whole = r.top || strings.Contains(pattern, "/") || strings.Contains(pattern, "**")
	return r
}

// Empty reports whether the Filter includes everything.
func (f *Filter) Empty() bool { return len(f.rules) == 0 && f.paths == nil }

// Excludes reports whether the rules exclude a path, which is relative to the top of the tree and uses slashes. It does not
// check the parent directories: the caller must not descend into excluded ones.
func (f *Filter) Excludes(name string, dir bool) bool {
	for i := range f.rules {
		if r := &f.rules[i]; r.matches(name, dir) {
			return !r.include || f.unnamed(name)
		}
	}
	return f.unnamed(name)
}

func (r *rule) matches(path string, dir bool) bool {
	if r.dirs && !dir {
		return false
	}
	if !r.whole {
		path = path[strings.LastIndexByte(path, '/')+1:]
	}
	if base, all := strings.CutSuffix(r.pattern, "/***"); all && dir && r.anywhere(base, path) {
		return true
	}
	return r.anywhere(r.pattern, path)
}

// anywhere matches a pattern with a path, or with the end of a path unless the rule matches from the top.
func (r *rule) anywhere(pattern, path string) bool {
	if match(pattern, path) || !r.top && strings.HasPrefix(pattern, "**") && match(pattern, "/"+path) { // **/a matches a
		return true
	}
	for i := 0; r.whole && !r.top && i < len(path); i++ {
		if path[i] == '/' && match(pattern, path[i+1:]) {
			return true
		}
	}
	return false
}

// match matches a pattern with a whole string. Its time is at most the product of both lengths.
func match(pattern, s string) bool {
	// at[i] is set if the pattern so far can match s[:i].
	at, next := make([]bool, len(s)+1), make([]bool, len(s)+1)
	at[0] = true
	for pattern != "" {
		token, n := pattern[0], 1
		literal := !strings.ContainsRune("*?[", rune(token))
		if token == '\\' && len(pattern) > 1 {
			token, n = pattern[1], 2
		}
		clear(next)
		switch {
		case !literal && token == '*':
			for n < len(pattern) && pattern[n] == '*' {
				n++
			}
			star(at, next, s, n > 1)
		case !literal && token == '?':
			step(at, next, s, func(c byte) bool { return c != '/' })
		case !literal && token == '[' && class(pattern) > 0:
			n = class(pattern)
			set := pattern[1 : n-1]
			step(at, next, s, func(c byte) bool { return c != '/' && inClass(set, c) })
		default:
			step(at, next, s, func(c byte) bool { return c == token })
		}
		pattern = pattern[n:]
		at, next = next, at
	}
	return at[len(s)]
}

// star advances all positions over any characters.
func star(at, next []bool, s string, slashes bool) {
	on := false
	for i := range next {
		if on = on || at[i]; on {
			next[i] = true
		}
		if i < len(s) && s[i] == '/' && !slashes {
			on = false
		}
	}
}

// step advances all positions over one character.
func step(at, next []bool, s string, accepts func(c byte) bool) {
	for i := range len(s) {
		next[i+1] = at[i] && accepts(s[i])
	}
}

// class returns the length of the [set] at the start of a pattern, 0 if its closing bracket is missing.
func class(pattern string) int {
	for i := 1; i < len(pattern); i++ {
		switch {
		case pattern[i] == '\\':
			i++
		case pattern[i] == ']' && i > 1 && (i > 2 || pattern[1] != '!' && pattern[1] != '^'):
			return i + 1
		}
	}
	return 0
}

// inClass reports whether a set, given without its brackets, contains c.
func inClass(set string, c byte) bool {
	negated := set != "" && (set[0] == '!' || set[0] == '^')
	if negated {
		set = set[1:]
	}
	found := false
	for set != "" {
		var low, high byte
		low, set = member(set)
		if high = low; len(set) > 1 && set[0] == '-' {
			high, set = member(set[1:])
		}
		found = found || low <= c && c <= high
	}
	return found != negated
}

// member cuts the first character from a set.
func member(set string) (c byte, rest string) {
	if set[0] == '\\' && len(set) > 1 {
		set = set[1:]
	}
	return set[0], set[1:]
}
