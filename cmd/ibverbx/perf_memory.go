package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"ibverbx/cuda"
	"ibverbx/internal/closer"
	"ibverbx/internal/perf/measure"
	"ibverbx/verbs"
)

// memoryFlag is --memory: where the buffers of the initiator and of the target are, or of both. The names are "host" and
// those of GPUs. Empty means the host.
type memoryFlag []string

const gpuPrefix = "cuda:"

// ordinalOf returns the number of a GPU, -1 for the host.
func ordinalOf(name string) (int, error) {
	if name == measure.HostMemory {
		return -1, nil
	}
	number, ok := strings.CutPrefix(name, gpuPrefix)
	n, err := strconv.Atoi(number)
	if !ok || err != nil || n < 0 || strconv.Itoa(n) != number {
		return 0, fmt.Errorf("want %s, or a GPU such as %s0", measure.HostMemory, gpuPrefix)
	}
	return n, nil
}

// set takes the value of the flag.
func (m *memoryFlag) set(s string) error {
	names := strings.Split(s, ",")
	if len(names) > 2 {
		return errors.New("want at most two places: those of the initiator and of the target")
	}
	for _, name := range names {
		if _, err := ordinalOf(name); err != nil {
			return err
		}
	}
	*m = names
	return nil
}

// completeMemory completes the value of --memory with what this machine has.
func completeMemory(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	values := []string{measure.HostMemory}
	gpus, _ := cuda.Devices() // a machine without a driver has none
	for _, g := range gpus {
		values = append(values, fmt.Sprintf("%s%d\t%s", gpuPrefix, g.Ordinal, g.Name))
	}
	return values, cobra.ShellCompDirectiveNoFileComp
}

// sides are the ends of the test in this process.
func (f *perfFlags) sides() []int {
	switch {
	case f.server:
		return []int{1}
	case f.host != "":
		return []int{0}
	}
	return []int{0, 1}
}

// placed refuses a Config that no device could measure where its buffers are to be.
func (f *perfFlags) placed() error {
	for _, side := range f.sides() {
		if name := f.memory.of(side); name != measure.HostMemory {
			f.cfg.Memory[side].Device = name
		}
	}
	_, err := f.cfg.Complete()
	return err
}

// of is the name of the memory of an end.
func (m memoryFlag) of(side int) string {
	if len(m) == 0 {
		return measure.HostMemory
	}
	return m[min(side, len(m)-1)]
}

// openMemory opens the GPUs that have buffers. Memory of the host beside a GPU in the same process is pinned. The caller closes
// the result.
func (f *perfFlags) openMemory() (gpus *closer.Stack, err error) {
	gpus = &closer.Stack{}
	open := map[int]*cuda.GPU{}
	var last *cuda.GPU
	for _, side := range f.sides() {
		name := f.memory.of(side)
		n, err := ordinalOf(name)
		if err != nil {
			return gpus, err
		}
		if n < 0 {
			continue
		}
		if open[n] == nil {
			g, err := cuda.Open(n)
			if err != nil {
				return gpus, fmt.Errorf("--memory %s: %w", name, err)
			}
			gpus.Add(g.Close)
			open[n] = g
		}
		last = open[n]
		f.cfg.Memory[side].Alloc = onGPU(last)
	}
	for _, side := range f.sides() {
		if last != nil && f.cfg.Memory[side].Alloc == nil {
			f.cfg.Memory[side].Alloc = pinnedFor(last)
		}
	}
	return gpus, nil
}

// onGPU allocates memory of a GPU.
func onGPU(g *cuda.GPU) func(int) (*verbs.Memory, func() error, error) {
	return func(size int) (*verbs.Memory, func() error, error) {
		mem, err := g.Alloc(size)
		if err != nil {
			return nil, nil, err
		}
		return mem, mem.Free, nil
	}
}

// pinnedFor allocates memory of the host that a GPU accesses directly.
func pinnedFor(g *cuda.GPU) func(int) (*verbs.Memory, func() error, error) {
	return func(size int) (*verbs.Memory, func() error, error) {
		mem, err := verbs.AllocMemory(size, nil)
		if err != nil {
			return nil, nil, err
		}
		pin, err := g.Pin(mem)
		if err != nil {
			return nil, nil, errors.Join(err, mem.Free())
		}
		return mem, func() error { return errors.Join(pin.Close(), mem.Free()) }, nil
	}
}
