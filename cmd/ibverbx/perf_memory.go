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

// memoryFlag is --memory: the buffer location of both ends, or of the initiator and the target. Values are "host" and
// GPU names such as cuda:0. Empty means host memory.
type memoryFlag []string

const gpuPrefix = "cuda:"

// gpuOf parses a GPU name and returns its ordinal.
func gpuOf(name string) (int, error) {
	number, ok := strings.CutPrefix(name, gpuPrefix)
	n, err := strconv.Atoi(number)
	if !ok || err != nil || n < 0 || strconv.Itoa(n) != number {
		return 0, fmt.Errorf("use %s, or a GPU such as %s0", measure.HostMemory, gpuPrefix)
	}
	return n, nil
}

// set parses the flag value.
func (m *memoryFlag) set(s string) error {
	names := strings.Split(s, ",")
	if len(names) > 2 {
		return errors.New("use at most two places, for the initiator and the target")
	}
	for _, name := range names {
		if _, err := gpuOf(name); err != nil && name != measure.HostMemory {
			return err
		}
	}
	*m = names
	return nil
}

// completeMemory completes --memory with the local GPUs.
func completeMemory(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	values := []string{measure.HostMemory}
	gpus, _ := cuda.Devices() // empty without a driver
	for _, g := range gpus {
		values = append(values, fmt.Sprintf("%s%d\t%s", gpuPrefix, g.Ordinal, g.Name))
	}
	return values, cobra.ShellCompDirectiveNoFileComp
}

// openMemory opens the GPUs used by the local ends. It rejects a Config that cannot run with the chosen memory. If
// this process uses a GPU, its host buffers are pinned. The caller closes the result.
func (f *perfFlags) openMemory() (gpus *closer.Stack, err error) {
	gpus = &closer.Stack{}
	ends := f.cfg.Memory[:]
	switch {
	case f.server:
		ends = ends[1:]
	case f.host != "":
		ends = ends[:1]
	}
	for i := range ends {
		if n := len(f.memory); n > 0 && f.memory[min(i, n-1)] != measure.HostMemory {
			ends[i].Device = f.memory[min(i, n-1)]
		}
	}
	if _, err := f.cfg.Complete(); err != nil {
		return gpus, err
	}
	open := map[string]*cuda.GPU{}
	var last *cuda.GPU
	for i := range ends {
		name := ends[i].Device
		if name == "" {
			continue
		}
		if open[name] == nil {
			n, err := gpuOf(name)
			if err != nil {
				return gpus, err
			}
			if open[name], err = cuda.Open(n); err != nil {
				return gpus, fmt.Errorf("--memory %s: %w", name, err)
			}
			gpus.Add(open[name].Close)
		}
		last = open[name]
		ends[i].Alloc = allocator(last, false)
	}
	for i := range ends {
		if last != nil && ends[i].Alloc == nil {
			ends[i].Alloc = allocator(last, true)
		}
	}
	return gpus, nil
}

// allocator returns a function that allocates GPU memory, or pinned host memory, which g accesses directly.
func allocator(g *cuda.GPU, pinned bool) func(int) (*verbs.Memory, func() error, error) {
	return func(size int) (mem *verbs.Memory, free func() error, err error) {
		if !pinned {
			if mem, err = g.Alloc(size); err != nil {
				return nil, nil, err
			}
			return mem, mem.Free, nil
		}
		if mem, err = verbs.AllocMemory(size, nil); err != nil {
			return nil, nil, err
		}
		pin, err := g.Pin(mem)
		if err != nil {
			return nil, nil, errors.Join(err, mem.Free())
		}
		return mem, func() error { return errors.Join(pin.Close(), mem.Free()) }, nil
	}
}
