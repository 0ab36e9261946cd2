package main

import (
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// build describes the build of this program.
type build struct {
	Module  string `json:"module"`
	Version string `json:"version"`
	// Revision, Time and Modified are the VCS state, empty if unknown at build time.
	Revision string `json:"revision,omitempty"`
	Time     string `json:"time,omitempty"`
	Modified bool   `json:"modified"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// buildVersion reads the build information embedded by the Go linker.
func buildVersion() build {
	b := build{Module: "ibverbx", Version: "(devel)", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	if info.Main.Version != "" {
		b.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Revision = s.Value
		case "vcs.time":
			b.Time = s.Value
		case "vcs.modified":
			b.Modified = s.Value == "true"
		}
	}
	return b
}

// newVersion builds the version command.
func newVersion(s streams) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version, the revision and the Go release",
		Example: `  ibverbx version
  ibverbx version --json | jq -r .revision`,
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			b := buildVersion()
			if asJSON {
				return printJSON(s.out, b)
			}
			p := printer{w: s.out}
			p.printf("%s %s\n", b.Module, b.Version)
			if b.Revision != "" {
				p.printf("revision: %s %s%s\n", b.Revision, b.Time, map[bool]string{true: ", with local changes"}[b.Modified])
			}
			p.printf("built with: %s %s\n", b.Go, b.Platform)
			return p.err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}
