package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"ibverbx/peer"
	"ibverbx/settings"
)

// groupFabric is the title of the flags for Setting.Tuning.
const groupFabric = "Fabric settings (set them on both sides)"

// groupVariables follows the title of the flags for other settings.
const groupVariables = " (each flag has a variable: --addr is IBVERBX_ADDR)"

// fabricFlags are a command's settings of package settings: from flags and, after readEnv, from the environment.
type fabricFlags struct {
	settings.Settings
	// letters adds the one-letter flags of perftest.
	letters bool
}

// define adds a flag for every setting that wanted selects, in groups. nics is the title for the settings of NICs.
func (f *fabricFlags) define(cmd *cobra.Command, nics string, wanted func(*settings.Setting) bool) {
	fl := cmd.Flags()
	for _, tuning := range []bool{false, true} {
		title := nics + groupVariables
		if tuning {
			title = groupFabric
		}
		grouped(fl, title, func() {
			for _, row := range settings.All() {
				if row.Tuning == tuning && wanted(&row) {
					f.defineOne(cmd, fl, &row)
				}
			}
		})
	}
}

func (f *fabricFlags) defineOne(cmd *cobra.Command, fl *pflag.FlagSet, row *settings.Setting) {
	about := row.About
	switch {
	case row.Tuning:
		about = fmt.Sprintf("%s: %s (default %s; variable %s)", about, row.Range, row.Default, row.Env)
	case !row.Switch:
		about = fmt.Sprintf("%s (default %s)", about, row.Default)
	}
	short := ""
	if f.letters {
		short = row.Short
	}
	flag := fl.VarPF(&settingValue{f, row.Name, row.Range, row.Switch}, row.Name, short, about)
	if row.Switch {
		flag.NoOptDefVal = "1"
	}
	if row.Values != nil { // the only error is an unknown flag
		_ = cmd.RegisterFlagCompletionFunc(row.Name, cobra.FixedCompletions(row.Values, cobra.ShellCompDirectiveNoFileComp))
	}
}

// settingValue is a setting as a flag.
type settingValue struct {
	flags       *fabricFlags
	name, legal string
	isSwitch    bool
}

// Set implements pflag.Value.
func (v *settingValue) Set(value string) error {
	err := v.flags.Set(v.name, value, "--"+v.name)
	var invalid *settings.ValueError
	switch {
	case errors.As(err, &invalid) && invalid.Want == v.legal:
		return errors.New("use " + v.legal)
	case errors.As(err, &invalid):
		return errors.New(invalid.Want)
	}
	return err
}

// String implements pflag.Value.
func (v *settingValue) String() string {
	if v.flags == nil {
		return ""
	}
	o := v.flags.origin(v.name)
	return o.Value
}

// Type implements pflag.Value.
func (v *settingValue) Type() string {
	if v.isSwitch {
		return "bool" // the help shows no value
	}
	return "string"
}

// readEnv takes the settings that no flag has set from the environment, and refuses contradictions.
func (f *fabricFlags) readEnv(cmd *cobra.Command, s streams) error {
	err := f.ReadEnv(s.lookup)
	if err == nil {
		f.Provider = cmp.Or(f.Provider, s.provider, peer.ProviderAuto)
		if f.Devices != "" && f.origin("provider") == (settings.Origin{}) {
			f.Provider = peer.ProviderAuto
		}
		err = f.Check()
	}
	var invalid *settings.ValueError
	switch {
	case errors.As(err, &invalid) && strings.HasPrefix(invalid.From, "IBVERBX_"):
		return wrong(cmd, "%s=%s: use %s", invalid.From, invalid.Value, invalid.Want)
	case err != nil:
		return wrong(cmd, "%w", err)
	}
	return nil
}

// origin returns where a setting was set; the zero value if it is not set.
func (f *fabricFlags) origin(name string) (o settings.Origin) {
	if i := slices.IndexFunc(f.Origins, func(o settings.Origin) bool { return o.Name == name }); i >= 0 {
		o = f.Origins[i]
	}
	return o
}

// byFlag reports whether a flag has set one of the settings.
func (f *fabricFlags) byFlag(names ...string) bool {
	return slices.ContainsFunc(names, func(name string) bool { return strings.HasPrefix(f.origin(name).From, "--") })
}

// during reads the environment and runs a command with the capture files open.
func (f *fabricFlags) during(cmd *cobra.Command, s streams, run func() error) (err error) {
	if err := f.readEnv(cmd, s); err != nil {
		return err
	}
	if c := f.Captures; c.Plain+c.Wire != "" {
		c.Application = "ibverbx " + buildVersion().Version
		if f.Capture, err = peer.NewCapture(c); err != nil {
			return fmt.Errorf("--pcap or --pcap-wire: %w", err)
		}
		defer func() {
			err = errors.Join(err, f.Capture.Close())
			f.Capture.Counts(func(name string, written, dropped uint64) {
				lost := ""
				if dropped > 0 {
					lost = fmt.Sprintf(", %d were dropped", dropped)
				}
				fmt.Fprintf(s.err, "ibverbx: %d packets in %s%s\n", written, name, lost)
			})
		}()
	}
	return run()
}

// given returns the fabric settings for the report, which has other fields for the NICs.
func (f *fabricFlags) given() (list []settings.Origin) {
	for _, row := range settings.All() {
		if o := f.origin(row.Name); row.Tuning && o.Name != "" {
			list = append(list, o)
		}
	}
	return list
}

// choose returns the provider of NICs for both ends in this process. With auto it prints its choice to notes.
func (f *fabricFlags) choose(notes io.Writer) (provider, error) {
	real := rdmaNICs{spec: f.Devices}
	switch f.Provider {
	case peer.ProviderSoftNIC:
		return softNICs{}, nil
	case peer.ProviderRDMACore:
		return real, nil
	case peer.ProviderAuto:
	}
	found, err := real.usable()
	switch {
	case err != nil && f.Devices != "":
		return nil, err
	case len(found) > 0:
		fmt.Fprintf(notes, "Using RDMA device %s.\n", found[0].Device.Name())
		return real, nil
	}
	why := "No RDMA hardware found"
	if err == nil {
		why = "No RDMA port is active"
	}
	fmt.Fprintln(notes, why+"; using software NICs (run `ibverbx doctor` for details).")
	return softNICs{}, nil
}
