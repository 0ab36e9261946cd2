package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Annotations of flags and commands.
const (
	// helpGroup is the title of a flag's group.
	helpGroup = "group"
	// helpRare marks a flag that only --help-all prints.
	helpRare = "rare"
	// helpMore is the text of a command that only --help-all prints.
	helpMore = "more"
)

// flagColumn is the column where flag descriptions start.
const flagColumn = 26

// setHelp formats the help of a command and its subcommands: the usage first, flags in groups, within the columns.
func setHelp(root *cobra.Command) {
	// The rest of cobra's text stays: examples and commands.
	before, _, _ := strings.Cut(root.UsageTemplate(), "{{if .HasAvailableLocalFlags}}")
	root.SetUsageTemplate(before)
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) { printHelp(cmd, false) })
}

// printHelp prints the help of a command, all of it or without rare flags and details.
func printHelp(cmd *cobra.Command, all bool) {
	usage, rest, _ := strings.Cut(strings.TrimSpace(cmd.UsageString()), "\n\n")
	p := printer{w: cmd.OutOrStdout()}
	p.printf("%s\n\n", usage)
	p.paragraphs(cmp.Or(cmd.Long, cmd.Short))
	if more := cmd.Annotations[helpMore]; all && more != "" {
		p.println("")
		p.paragraphs(more)
	}
	if rest != "" {
		p.printf("\n%s\n", rest)
	}
	p.flags(cmd.LocalFlags(), all)
	switch {
	case !cmd.HasParent():
		p.println("\nRun 'ibverbx COMMAND --help' for details. Exit statuses: docs/commands.md.")
	case cmd.HasAvailableSubCommands():
		p.printf("\nRun '%s COMMAND --help' for the flags and examples of a command.\n", cmd.CommandPath())
	}
}

// addHelpAll adds --help-all to a command. --help keeps only the common flags.
func addHelpAll(cmd *cobra.Command, common []string) {
	fl := cmd.Flags()
	fl.VisitAll(func(f *pflag.Flag) {
		if !f.Hidden && !slices.Contains(common, f.Name) {
			_ = fl.SetAnnotation(f.Name, helpRare, []string{""}) // the flag exists
		}
	})
	var all bool
	fl.BoolVar(&all, "help-all", false, "print all flags and details")
	args, run := cmd.Args, cmd.RunE
	cmd.Args = func(cmd *cobra.Command, list []string) error {
		if all {
			return nil
		}
		return args(cmd, list)
	}
	cmd.RunE = func(cmd *cobra.Command, list []string) error {
		if all {
			printHelp(cmd, true)
			return nil
		}
		return run(cmd, list)
	}
}

// grouped runs define and puts the flags that it adds into a group of the help. The set must not be sorted.
func grouped(fl *pflag.FlagSet, title string, define func()) {
	before := map[string]bool{}
	fl.VisitAll(func(f *pflag.Flag) { before[f.Name] = true })
	define()
	fl.VisitAll(func(f *pflag.Flag) {
		if !before[f.Name] {
			_ = fl.SetAnnotation(f.Name, helpGroup, []string{title}) // the flag exists
		}
	})
}

// paragraphs prints text in lines that fit the columns. Lines that begin with a blank stay as they are.
func (p *printer) paragraphs(text string) {
	var words []string
	end := func() {
		if len(words) > 0 {
			p.wrap("", strings.Join(words, " "))
			words = nil
		}
	}
	for line := range strings.SplitSeq(text, "\n") {
		if line != "" && line[0] != ' ' {
			words = append(words, line)
			continue
		}
		end()
		p.println(line)
	}
	end()
}

// flags prints flags and their descriptions, group by group, without rare ones unless all are wanted. A long name has its
// own line.
func (p *printer) flags(fl *pflag.FlagSet, all bool) {
	last := ""
	fl.VisitAll(func(f *pflag.Flag) {
		if _, rare := f.Annotations[helpRare]; f.Hidden || f.Deprecated != "" || rare && !all {
			return
		}
		title := "Flags"
		if group := f.Annotations[helpGroup]; group != nil {
			title = group[0]
		} else if last != "" && last != title {
			title = "Help"
		}
		if title != last {
			p.printf("\n%s:\n", title)
			last = title
		}
		value, usage := pflag.UnquoteUsage(f)
		name := "      --" + f.Name
		if f.Shorthand != "" {
			name = "  -" + f.Shorthand + ", --" + f.Name
		}
		if value != "" {
			name += " " + value
		}
		if d := f.DefValue; !slices.Contains([]string{"", "0", "false", "[]", "0s"}, d) {
			usage += fmt.Sprintf(" (default %s)", d)
		}
		if len(name)+2 > flagColumn {
			p.println(name)
			name = ""
		}
		p.hang(name, flagColumn, usage)
	})
}
