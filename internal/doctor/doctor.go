// Package doctor finds out whether a machine can do RDMA through libibverbs, and if not,
// why not and what to do about it.
//
// It reads files and opens device files; it loads no library, changes nothing and needs
// no privileges. Everything that it reads comes from a Machine, so that a test can hand
// it a machine that does not exist.
package doctor

import (
	"fmt"
	"io/fs"
	"slices"
)

// Machine is what doctor looks at.
type Machine struct {
	// OS is the operating system, in the words of runtime.GOOS.
	OS string

	// Root is the file system from its root, with /proc and /sys of this process.
	Root fs.FS

	// Env returns a variable of the environment, "" if it is not set. Nil means that
	// none is set.
	Env func(name string) string

	// Open tries to open a device file for reading and writing, and closes it again. The
	// name is absolute. Nil means that every file can be opened.
	Open func(name string) error
}

// Level says how bad a finding is.
type Level string

// Levels, worst first.
const (
	Problem Level = "problem" // stops RDMA on this machine
	Warning Level = "warning" // stops a part of it, or will hurt
	Note    Level = "note"    // worth knowing
	OK      Level = "ok"      // looked at, and as it should be
)

// Finding is one thing that was looked at.
type Finding struct {
	// Check is what was looked at: system, container, kernel, devices, access, ports,
	// gids, mtu, library, providers or memlock.
	Check string `json:"check"`
	Level Level  `json:"level"`

	// Found says what is there, Means what follows from it, and Do what to do, one step
	// per line, likeliest first. An OK finding has only Found.
	Found string   `json:"found"`
	Means string   `json:"means,omitempty"`
	Do    []string `json:"do,omitempty"`
}

// Report is the whole examination. Lists are never nil.
type Report struct {
	// Usable says that this process can use at least one port of one device.
	Usable bool `json:"usable"`

	// Softnic says that the NIC in software works. It always does.
	Softnic bool `json:"softnic"`

	// Findings are sorted by level. Those of one level are in the order of cause: what
	// comes first may be the reason for what comes after it.
	Findings []Finding `json:"findings"`

	System    System     `json:"system"`
	Modules   []Module   `json:"modules"`
	Devices   []Device   `json:"devices"`
	Library   Library    `json:"library"`
	Providers []Provider `json:"providers"`
	Memlock   Memlock    `json:"memlock"`
}

// Examine looks at everything and judges it.
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
		e.report("system", Problem, "this is "+m.OS, "libibverbs and the RDMA drivers that this program can use exist on Linux only.",
			"Use softnic here: ibverbx perf measures it.")
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
	e.judgeProviders()
	e.judgeMemlock()
	e.judgeContainer()
	return e.finish()
}

// exam is an examination under way: the machine, and the report as far as it is known.
type exam struct {
	m Machine
	Report
}

// report adds a finding.
func (e *exam) report(check string, level Level, found, means string, do ...string) {
	e.Findings = append(e.Findings, Finding{Check: check, Level: level, Found: found, Means: means, Do: do})
}

// ok adds a finding that all is well.
func (e *exam) ok(check, format string, args ...any) {
	e.report(check, OK, fmt.Sprintf(format, args...), "")
}

// finish decides whether the machine is usable and sorts the findings. If it is usable,
// no problem is one that stops RDMA: it is a warning then, about one device of several.
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
	rank := []Level{Problem, Warning, Note, OK}
	slices.SortStableFunc(e.Findings, func(a, b Finding) int {
		return slices.Index(rank, a.Level) - slices.Index(rank, b.Level)
	})
	return e.Report
}
