package main

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"ibverbx/internal/perf/measure"
	"ibverbx/settings"
)

// perftestNames are long names of perftest for flags with the same meaning.
var perftestNames = map[string]string{"pkey_index": "pkey-index", "qp-timeout": "ack-timeout"}

// defineSettings adds a flag for every setting.
func (f *perfFlags) defineSettings(fl *pflag.FlagSet) {
	fl.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		return pflag.NormalizedName(cmp.Or(perftestNames[name], name))
	})
	for _, s := range settings.All() {
		usage := fmt.Sprintf("%s: %s (default %s; variable %s)", s.About, s.Range, s.Default, s.Env)
		fl.FuncP(s.Name, s.Short, usage, func(value string) error {
			if f.settings.Set(s.Name, value, "--"+s.Name) != nil {
				return errors.New("want " + s.Range)
			}
			return nil
		})
	}
}

// readEnv takes the settings that no flag has set from the environment.
func (f *perfFlags) readEnv(cmd *cobra.Command, s streams) error {
	if err := f.settings.ReadEnv(s.lookup); err != nil {
		return wrong(cmd, "%w", err)
	}
	return nil
}

// given is what was set, for the report.
func (f *perfFlags) given() (list []measure.Setting) {
	for _, g := range f.settings.Given {
		list = append(list, measure.Setting(g))
	}
	return list
}
