package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"testing"
	"testing/fstest"

	"ibverbx/cuda"
	"ibverbx/internal/doctor"
)

// gpuServer is a host with two GPUs and a NIC close to the first.
func gpuServer() gpuHost {
	link := func(target string) *fstest.MapFile {
		return &fstest.MapFile{Data: []byte(target), Mode: fs.ModeSymlink | 0o777}
	}
	return gpuHost{
		sys: fstest.MapFS{
			"bus/pci/devices/0000:18:00.0":   link("../../../devices/pci0000:15/0000:15:01.0/0000:18:00.0"),
			"bus/pci/devices/0000:19:00.0":   link("../../../devices/pci0000:15/0000:15:01.0/0000:19:00.0"),
			"bus/pci/devices/0000:98:00.0":   link("../../../devices/pci0000:97/0000:98:00.0"),
			"class/infiniband/mlx5_0/device": link("../../../0000:19:00.0"),
		},
		list: func() ([]cuda.Device, error) {
			return []cuda.Device{
				{Name: "NVIDIA H200", PCI: "0000:18:00.0", Memory: 140 << 30, Compute: "9.0", DMABuf: true, GPUDirect: true},
				{Ordinal: 1, Name: "NVIDIA T4", PCI: "0000:98:00.0", Memory: 15 << 30, Compute: "7.5"},
			}, nil
		},
		export: func(ordinal int) error {
			if ordinal == 1 {
				return fmt.Errorf("%w: not supported", errExport)
			}
			return nil
		},
	}
}

func TestGPUText(t *testing.T) {
	h := gpuServer()
	gpus, err := h.found()
	if err != nil || len(gpus) != 2 {
		t.Fatalf("found = %v, %v, want 2 GPUs", gpus, err)
	}
	var out bytes.Buffer
	p := printer{w: &out}
	printGPU(&p, &gpus[0])
	want := "gpu_id:\tcuda:0\n\tmodel:\t\t\t\tNVIDIA H200\n\tpci:\t\t\t\t0000:18:00.0\n\tmemory:\t\t\t\t140.0 GiB\n" +
		"\tdma_buf:\t\t\tyes\n\tclosest_nic:\t\t\tmlx5_0 (same PCIe switch, 2 hops)\n"
	if out.String() != want {
		t.Errorf("printGPU prints\n%s\nwant\n%s", out.String(), want)
	}
}

// TestDoctorGPUs: doctor prints one line per GPU, or one line on a host without GPUs. It blames the dma-buf export
// only if the export itself failed.
func TestDoctorGPUs(t *testing.T) {
	fails := func(err error) gpuHost {
		return gpuHost{sys: fstest.MapFS{}, list: func() ([]cuda.Device, error) { return nil, err }}
	}
	full := gpuServer()
	full.export = func(int) error { return errors.New("out of memory") }
	for _, tt := range []struct {
		host gpuHost
		want []string
	}{
		{gpuServer(), []string{
			"ok cuda:0: NVIDIA H200 (PCI 0000:18:00.0, 140.0 GiB); closest NIC: mlx5_0 (same PCIe switch, 2 hops); dma-buf export works",
			"note cuda:1: NVIDIA T4 (PCI 0000:98:00.0, 15.0 GiB); closest NIC: mlx5_0 (across NUMA nodes); dma-buf export fails: not supported",
		}},
		{full, []string{
			"note cuda:0: NVIDIA H200 (PCI 0000:18:00.0, 140.0 GiB); closest NIC: mlx5_0 (same PCIe switch, 2 hops); dma-buf export could not be tried: out of memory",
			"note cuda:1: NVIDIA T4 (PCI 0000:98:00.0, 15.0 GiB); closest NIC: mlx5_0 (across NUMA nodes); dma-buf export could not be tried: out of memory",
		}},
		{fails(nil), []string{"ok no GPU: the NVIDIA driver has none"}},
		{fails(fmt.Errorf("load: %w", cuda.ErrNoDevice)), []string{"ok no GPU: the NVIDIA driver has none"}},
		{fails(fmt.Errorf("load: %w", cuda.ErrNoDriver)), []string{"ok no GPU: there is no NVIDIA driver that this program can use"}},
		{fails(errors.New("driver mismatch")), []string{"note driver mismatch"}},
	} {
		var got []string
		for _, f := range tt.host.judge() {
			if f.Check != "gpus" || (f.Level == doctor.OK) != (f.Means == "") {
				t.Errorf("the finding is %+v, want a check of gpus, with its meaning if it is not ok", f)
			}
			got = append(got, string(f.Level)+" "+f.Found)
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("doctor finds %q, want %q", got, tt.want)
		}
	}
}

// TestDevicesGPUs: devices --json always contains a list of GPUs. With a device name, it lists that device only.
func TestDevicesGPUs(t *testing.T) {
	if _, ok := object(t, "devices")["gpus"].([]any); !ok {
		t.Error("devices --json has no list of GPUs")
	}
	if got := object(t, "devices", "-d", "soft0")["gpus"]; len(got.([]any)) != 0 {
		t.Errorf("devices -d soft0 has the GPUs %v, want none", got)
	}
}
