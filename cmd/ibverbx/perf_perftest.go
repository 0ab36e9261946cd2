package main

import (
	"errors"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// perftestFlags are perftest flags with another name here, or without an equivalent. They are not in the help.
type perftestFlags struct {
	port string // of the server, for -p
}

// foreignFlag is an unsupported perftest flag. Its error names the replacement.
type foreignFlag struct {
	name, short string
	value       bool // it takes one
	answer      string
}

var foreignFlags = []foreignFlag{
	{"ib-port", "i", true, "name the port with the device: --devices mlx5_0:1"},
	{"rdma_cm", "R", false, "the two sides meet over TCP with TLS (--token-file), never with rdma_cm; drop it"},
	{"inline_size", "I", true, "perf posts no inline data; drop it"},
	{"post_list", "l", true, "use -Q (--cq-mod): so many messages are posted at once, with one completion"},
	{"report-histogram", "H", false, "use --json: each result of --lat has a histogram"},
	{"report-unsorted", "U", false, "single samples are not kept; use --json, which has a histogram and a timeline"},
}

// define adds the flags, hidden.
func (p *perftestFlags) define(fl *pflag.FlagSet, set *fabricFlags) {
	fl.FuncP("ib-dev", "d", "perftest's name of --devices", func(s string) error {
		return set.Set("devices", "="+s, "--devices") // the exact name, not a prefix
	})
	fl.FuncP("port", "p", "perftest's way to name the TCP port", func(s string) error {
		if n, err := strconv.ParseUint(s, 10, 16); err != nil || n == 0 {
			return errors.New("use a port from 1 to 65535")
		}
		p.port = s
		return nil
	})
	nothing := func(string) error { return nil }
	fl.BoolFuncP("CPU-freq", "F", "nothing here depends on the frequency of the CPU", nothing)
	fl.BoolFuncP("noPeak", "N", "the peak costs nothing here", nothing)
	hidden := []string{"ib-dev", "port", "CPU-freq", "noPeak"}
	for _, f := range foreignFlags {
		answer := func(string) error { return errors.New(f.answer) }
		if f.value {
			fl.FuncP(f.name, f.short, f.answer, answer)
		} else {
			fl.BoolFuncP(f.name, f.short, f.answer, answer)
		}
		hidden = append(hidden, f.name)
	}
	for _, name := range hidden {
		fl.Lookup(name).Hidden = true
	}
}

// usePort takes the port of -p for the host or the server.
func (f *perfFlags) usePort(cmd *cobra.Command) error {
	port := f.perftest.port
	if port == "" {
		return nil
	}
	at := withPort(f.host, port)
	switch {
	case f.server && f.listen == "":
		f.listen = ":" + port
	case f.host != "" && at != f.host:
		f.host = at
	case f.host == "" && !f.server:
		return wrong(cmd, "-p needs a HOST")
	default:
		return wrong(cmd, "-p %s: there is a port already, in --listen or in HOST:PORT", port)
	}
	return nil
}
