package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"ibverbx/cuda"
	"ibverbx/internal/doctor"
	"ibverbx/internal/pcie"
)

// gpuHost provides access to the GPUs of a host.
type gpuHost struct {
	sys  fs.FS // the /sys directory
	list func() ([]cuda.Device, error)
	// export allocates GPU memory and exports it as a dma-buf. The error wraps errExport only if the export itself
	// fails.
	export func(ordinal int) error
}

// thisHost returns the local GPUs.
func thisHost() gpuHost {
	return gpuHost{sys: os.DirFS("/sys"), list: cuda.Devices, export: exportDMABuf}
}

// errExport means that a dma-buf export failed after memory was allocated.
var errExport = errors.New("dma-buf export fails")

// exportDMABuf tests the export with real GPU memory instead of trusting device attributes.
func exportDMABuf(ordinal int) (err error) {
	g, err := cuda.Open(ordinal)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.Close()) }()
	m, err := g.Alloc(1 << 16)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Free()) }()
	file, _, err := m.DMABuf()
	if err != nil {
		return fmt.Errorf("%w: %w", errExport, err)
	}
	return file.Close()
}

// gpu describes a GPU for the devices command; --json prints it unchanged.
type gpu struct {
	Name      string   `json:"name"` // cuda:0
	Model     string   `json:"model"`
	PCI       string   `json:"pci"`
	Memory    uint64   `json:"memory_bytes"`
	Compute   string   `json:"compute_capability"`
	DMABuf    bool     `json:"dma_buf"`
	GPUDirect bool     `json:"gpudirect_rdma"`
	NICs      []string `json:"closest_nics"`
	Distance  string   `json:"nic_distance,omitempty"`

	ordinal int
}

// found lists the GPUs. Errors are as in cuda.Devices.
func (h *gpuHost) found() ([]gpu, error) {
	gpus := []gpu{}
	devices, err := h.list()
	for _, d := range devices {
		g := gpu{
			Name: fmt.Sprintf("cuda:%d", d.Ordinal), Model: d.Name, PCI: d.PCI, Memory: d.Memory, Compute: d.Compute,
			DMABuf: d.DMABuf, GPUDirect: d.GPUDirect, NICs: []string{}, ordinal: d.Ordinal,
		}
		if nics, distance := pcie.ClosestNICs(h.sys, d.PCI); nics != nil {
			g.NICs, g.Distance = nics, distance.String()
		}
		gpus = append(gpus, g)
	}
	return gpus, err
}

// nearest names the closest NICs.
func (g *gpu) nearest() string {
	if len(g.NICs) == 0 {
		return "none"
	}
	return fmt.Sprintf("%s (%s)", strings.Join(g.NICs, ", "), g.Distance)
}

// printGPU prints a GPU in the printDevice layout.
func printGPU(p *printer, g *gpu) {
	yes := map[bool]string{true: "yes", false: "no"}
	p.printf("gpu_id:\t%s\n", g.Name)
	p.printf("\tmodel:\t\t\t\t%s\n", g.Model)
	p.printf("\tpci:\t\t\t\t%s\n", g.PCI)
	p.printf("\tmemory:\t\t\t\t%.1f GiB\n", float64(g.Memory)/(1<<30))
	p.printf("\tdma_buf:\t\t\t%s\n", yes[g.DMABuf])
	p.printf("\tclosest_nic:\t\t\t%s\n", g.nearest())
}

// judge reports one finding per GPU, or a single one without GPUs.
func (h *gpuHost) judge() (found []doctor.Finding) {
	add := func(f doctor.Finding) { f.Check = "gpus"; found = append(found, f) }
	gpus, err := h.found()
	switch {
	case errors.Is(err, cuda.ErrNoDriver), errors.Is(err, cuda.ErrNoDevice), err == nil && len(gpus) == 0:
		why := "the NVIDIA driver has none"
		if errors.Is(err, cuda.ErrNoDriver) {
			why = "there is no NVIDIA driver that this program can use"
		}
		add(doctor.Finding{Level: doctor.OK, Found: "no GPU: " + why})
	case err != nil:
		add(doctor.Finding{
			Level: doctor.Note, Found: err.Error(), Means: "Memory of GPUs cannot be used. All else can.",
			Do: []string{"nvidia-smi shows whether the driver works. Its library and its kernel module must have the same version."},
		})
	}
	for i := range gpus {
		g := &gpus[i]
		text := fmt.Sprintf("%s: %s (PCI %s, %.1f GiB); closest NIC: %s; ", g.Name, g.Model, g.PCI, float64(g.Memory)/(1<<30), g.nearest())
		switch err := h.export(g.ordinal); {
		case err == nil:
			add(doctor.Finding{Level: doctor.OK, Found: text + "dma-buf export works"})
		case errors.Is(err, errExport):
			add(doctor.Finding{
				Level: doctor.Note, Found: text + err.Error(), Means: "NICs cannot register memory of this GPU.",
				Do: []string{"Use the open kernel modules of the NVIDIA driver (515 or later) on Linux 5.12 or later."},
			})
		default:
			add(doctor.Finding{
				Level: doctor.Note, Found: text + "dma-buf export could not be tried: " + err.Error(), Means: "Memory of this GPU cannot be used now.",
				Do: []string{"nvidia-smi shows whether the GPU works, and which processes use its memory."},
			})
		}
	}
	return found
}
