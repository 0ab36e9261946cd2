package sim

import (
	"embed"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
)

//go:embed scenarios/*.txt
var texts embed.FS

// Names returns the names of the built-in scenarios, sorted.
func Names() []string {
	files, _ := fs.Glob(texts, "scenarios/*.txt") // The only error is a malformed pattern.
	var names []string
	for _, file := range files {
		names = append(names, strings.TrimSuffix(path.Base(file), ".txt"))
	}
	slices.Sort(names)
	return names
}

// Builtin returns a built-in scenario by name. An unknown name returns an error.
func Builtin(name string) (*Scenario, error) {
	b, err := texts.ReadFile(path.Join("scenarios", name+".txt"))
	if err != nil {
		return nil, fmt.Errorf("there is no scenario %q: want one of %s", name, strings.Join(Names(), ", "))
	}
	return Parse(name, string(b))
}
