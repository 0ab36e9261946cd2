package main

import (
	"os"

	"github.com/spf13/cobra"

	"ibverbx/settings"
)

// environment returns the variables as NAME=VALUE. Tests that replace the environment list them in streams.environ.
func (s *streams) environment() []string {
	if s.environ == nil && s.env == nil {
		return os.Environ()
	}
	return s.environ
}

// refuseVariables rejects unknown variables, which are probably misspelled. doctor reports them instead.
func (s *streams) refuseVariables(cmd *cobra.Command) error {
	if cmd.Name() == "doctor" {
		return nil
	}
	for _, u := range settings.Unknown(s.environment()) {
		return wrong(cmd, "%v Correct it, or unset it", u)
	}
	return nil
}
