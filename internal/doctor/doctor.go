// Package doctor checks whether a machine supports RDMA through libibverbs. If it does not, doctor
// explains why and how to fix it.
//
// [Examine] checks a [Machine] and returns a [Report]; [Host] returns this machine. Examine reads
// files and opens device files. It does not load libraries, change the system or need privileges. All
// input is read through a Machine, so tests can supply imaginary machines.
//
// A Report is the output of "ibverbx doctor --json": add JSON fields, but do not rename them.
package doctor

import (
	"fmt"
	"io/fs"
	"slices"
)

// Machine is the machine to examine.
type Machine struct {
	// OS is the operating system, as in runtime.GOOS.
	OS string

	// Root is the root file system, with /proc and /sys of this process.
	Root fs.FS

	// Env returns an environment variable, "" if it is unset. Nil means an empty environment.
	Env func(name string) string

	// Open opens a device file for reading and writing, and closes it again. The name is absolute.
	// Nil means that every file can be opened.
	Open func(name string) error
}

// Level is the severity of a finding.
type Level string

// Levels, worst first.
const (
	Problem Level = "problem" // prevents RDMA on this machine
	Warning Level = "warning" // prevents some of it, or will cause trouble
	Note    Level = "note"    // worth knowing
	OK      Level = "ok"      // checked, and correct
)

// Finding is the result of one check.
type Finding struct {
	// Check is the subject: system, container, kernel, devices, access, ports, gids, mtu,
	// library, providers or memlock.
	Check string `json:"check"`
	Level Level  `json:"level"`

	// Found is the observation.
	Found string `json:"found"`
	// Means is its consequence; empty if Level is OK.
	Means string `json:"means,omitempty"`
	// Do lists the steps to take, the likeliest first; empty if Level is OK.
	Do []string `json:"do,omitempty"`
}

// Report is the result of an examination. Lists are never nil.
type Report struct {
	// Usable reports whether this process can use at least one port of one device.
	Usable bool `json:"usable"`

	// Softnic reports whether software NICs work. It is always true.
	Softnic bool `json:"softnic"`

	// Findings are sorted by level, then by cause: an earlier finding may be the reason for
	// a later one.
	Findings []Finding `json:"findings"`

	System    System     `json:"system"`
	Modules   []Module   `json:"modules"`
	Devices   []Device   `json:"devices"`
	Library   Library    `json:"library"`
	Providers []Provider `json:"providers"`
	Memlock   Memlock    `json:"memlock"`
}

// Examine runs all checks.
func Examine(m Machine) Report {
	if m.Env == nil {
		m.Env = func(string) string { return "" }
	}
	if m.Open == nil {
		m.Open = func(string) error { return nil }
	}
	e := &exam{m: m, Report: Report{
		Softnic: true, Modules: []Module{}, Devices: []Device{}, Providers: []Provider{},
	}}
	e.System.OS = m.OS
	if m.OS != "linux" {
		e.report("system", Problem, "this is "+m.OS, "libibverbs and the RDMA drivers that this program can use exist only on Linux.",
			"Use softnic here. ibverbx perf measures it.")
		return e.finish()
	}
	e.readSystem()
	e.readModules()
	e.readDevices()
	e.readLibrary()
	e.readProviders()
	e.readMemlock()

	e.judgeKernel()
	e.judgeAccess()
	e.judgePorts()
	e.judgeLibrary()
	e.judgeCM()
	e.judgeProviders()
	e.judgeMemlock()
	e.judgeContainer()
	return e.finish()
}

// exam is an examination in progress.
type exam struct {
	m Machine
	Report
}

// report adds a finding.
func (e *exam) report(check string, level Level, found, means string, do ...string) {
	e.Findings = append(e.Findings, Finding{Check: check, Level: level, Found: found, Means: means, Do: do})
}

// ok adds a finding of level OK.
func (e *exam) ok(check, format string, args ...any) {
	e.report(check, OK, fmt.Sprintf(format, args...), "")
}

// finish decides whether the machine is usable and sorts the findings. On a usable machine,
// problems become warnings, because they only concern one of several devices.
func (e *exam) finish() Report {
	blocked := slices.ContainsFunc(e.Findings, func(f Finding) bool { return f.Level == Problem && f.Check == "memlock" })
	for i := range e.Devices {
		d := &e.Devices[i]
		d.Usable = d.opens && d.live && d.served
		e.Usable = e.Usable || d.Usable && !blocked
	}
	for i := range e.Findings {
		if e.Usable && e.Findings[i].Level == Problem {
			e.Findings[i].Level = Warning
		}
	}
	e.Add()
	return e.Report
}

// Add adds findings of other checks and sorts all by level.
func (r *Report) Add(more ...Finding) {
	rank := []Level{Problem, Warning, Note, OK}
	r.Findings = append(r.Findings, more...)
	slices.SortStableFunc(r.Findings, func(a, b Finding) int {
		return slices.Index(rank, a.Level) - slices.Index(rank, b.Level)
	})
}
