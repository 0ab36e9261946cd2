package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// helpGroup is the annotation of the first flag of a group, with the title of the group. It needs SortFlags to be false.
const helpGroup = "group"

// flagColumn is where what a flag does is printed.
const flagColumn = 26

// setHelp makes the help of a command and of those below it fit the columns, with the usage first and flags in groups.
func setHelp(root *cobra.Command) {
	// The rest of cobra's text stays: examples and commands.
	before, _, _ := strings.Cut(root.UsageTemplate(), "{{if .HasAvailableLocalFlags}}")
	root.SetUsageTemplate(before)
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) {
		usage, rest, _ := strings.Cut(strings.TrimSpace(cmd.UsageString()), "\n\n")
		p := printer{w: cmd.OutOrStdout()}
		p.printf("%s\n\n", usage)
		p.paragraphs(cmp.Or(cmd.Long, cmd.Short))
		if rest != "" {
			p.printf("\n%s\n", rest)
		}
		p.flags(cmd.LocalFlags())
		if cmd.HasAvailableSubCommands() {
			p.printf("\nRun '%s COMMAND --help' for the flags and examples of a command.\n", cmd.CommandPath())
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

// flags prints flags and what they do. A long name has a line of its own.
func (p *printer) flags(fl *pflag.FlagSet) {
	title := "Flags"
	fl.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Deprecated != "" {
			return
		}
		if group := f.Annotations[helpGroup]; group != nil {
			title = group[0]
		}
		if title != "" {
			p.printf("\n%s:\n", title)
			title = ""
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
