package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"ibverbx/internal/doctor"
)

// errNoRDMA means that doctor found no usable RDMA device.
var errNoRDMA = errors.New("RDMA is not usable on this machine; softnic is")

// newDoctor builds the doctor command.
func newDoctor(s streams) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check whether RDMA works here, and what to do if not",
		Long: `Check everything that RDMA through libibverbs needs on this machine: kernel modules,
devices, device files, ports, GIDs, MTU, the library, its providers, the limit on locked memory, and
the container around this process. It also shows the environment variables that are set for ibverbx
(ibverbx perf --help lists them), and NVIDIA GPUs: whether their memory can be exported to NICs, and
which NIC is closest. Each finding says what it means and what to do. Problems come
first, the likeliest cause before its consequences.

It reads files, opens device files and allocates a little memory of each GPU. It changes nothing and needs no root. Run it as the user of
your program, because limits and permissions depend on the user.

The exit status is 0 if this user can use at least one port of one RDMA device, otherwise 1.
softnic, the NIC in software, works either way.

With --json there is one object with the fields
  usable     whether the exit status is 0
  softnic    true
  findings   check, level (problem, warning, note or ok), found, means, do
  system     os, kernel, distro, container
  modules    name, loaded
  devices    name, driver, file, file_error, usable, and ports with state,
             netdev, mtu, gids
  library    path, version, provider_abi
  providers  name, path
  memlock    soft_bytes, hard_bytes (-1 is unlimited), exempt`,
		Example: `  ibverbx doctor
  ibverbx doctor --json | jq -r '.findings[].found'
  ibverbx doctor >/dev/null && ibverbx perf`,
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			r := doctor.Examine(doctor.Host())
			gpus := thisHost()
			r.Add(append(judgeEnv(os.Environ()), gpus.judge()...)...)
			if err := printReport(s, &r, asJSON); err != nil {
				return err
			}
			if !r.Usable {
				return errNoRDMA
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}

// printReport prints a report as text or JSON.
func printReport(s streams, r *doctor.Report, asJSON bool) error {
	if asJSON {
		return printJSON(s.out, r)
	}
	p := printer{w: s.out}
	for i := range r.Findings {
		printFinding(&p, &r.Findings[i])
	}
	p.println("")
	p.println(verdict(r))
	p.println("softnic, the NIC in software, works anyway: ibverbx perf measures it.")
	return p.err
}

// printFinding prints one finding: a line if the check passed, otherwise a paragraph.
func printFinding(p *printer, f *doctor.Finding) {
	const width = 11 // width of the level column
	p.hang(string(f.Level), width, fmt.Sprintf("%s: %s", f.Check, f.Found))
	if f.Level == doctor.OK {
		return
	}
	indent := strings.Repeat(" ", width)
	p.wrap(indent, f.Means)
	for _, step := range f.Do {
		p.printf("%s- %s\n", indent, step) // unwrapped, because it may be a command to copy
	}
	p.println("")
}

// verdict returns the conclusion for this machine.
func verdict(r *doctor.Report) string {
	if r.Usable {
		var names []string
		for i := range r.Devices {
			if r.Devices[i].Usable {
				names = append(names, r.Devices[i].Name)
			}
		}
		return "RDMA is usable: " + strings.Join(names, ", ")
	}
	n := 0
	for i := range r.Findings {
		if r.Findings[i].Level == doctor.Problem {
			n++
		}
	}
	if n == 1 {
		return "RDMA is not usable: 1 problem stops it."
	}
	return fmt.Sprintf("RDMA is not usable: %d problems stop it. Start with the first.", n)
}
