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

// Names returns the names of the scenarios that are built in, in order.
func Names() []string {
	entries, err := fs.ReadDir(texts, "scenarios")
	if err != nil {
		panic(fmt.Sprintf("sim: the scenarios are not there: %v", err)) // they are embedded
	}
	var names []string
	for _, e := range entries {
		names = append(names, strings.TrimSuffix(e.Name(), ".txt"))
	}
	slices.Sort(names)
	return names
}

// Named returns a scenario that is built in.
func Named(name string) (*Scenario, error) {
	b, err := texts.ReadFile(path.Join("scenarios", name+".txt"))
	if err != nil {
		return nil, fmt.Errorf("there is no scenario %q: want one of %s", name, strings.Join(Names(), ", "))
	}
	return Parse(name, string(b))
}
