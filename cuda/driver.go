package cuda

import (
	"fmt"
	"strings"

	"ibverbx/verbs"
)

// DefaultLibrary is the library name that Load passes to the dynamic linker.
const DefaultLibrary = "libcuda.so.1"

// Config configures access to libcuda. The zero value means the system's library.
type Config struct {
	// Library is the file to open instead of DefaultLibrary: a path, or a name for the dynamic linker to
	// search.
	Library string
}

// Driver is libcuda, opened at run time. It is safe for concurrent use and is never closed.
type Driver struct {
	lib            *library
	version, count int
}

// loadResult is the outcome of cLoad.
type loadResult int

const (
	loaded loadResult = iota
	noLibrary
	oldLibrary
	noBuild
)

// Load opens and initializes libcuda. Errors wrap ErrNoDriver or ErrNoDevice and name the reason. The
// library stays loaded until the process exits.
func Load(cfg Config) (*Driver, error) {
	const op = "load libcuda"
	path := cfg.Library
	if path == "" {
		path = DefaultLibrary
	}
	lib, text, res := cLoad(path)
	switch res {
	case loaded:
	case oldLibrary:
		return nil, verbs.NewOpError(op, "", 0, fmt.Errorf("%w: %s has no %s; update the NVIDIA driver", ErrNoDriver, path, text))
	case noBuild:
		return nil, verbs.NewOpError(op, "", 0, fmt.Errorf("%w: %s", ErrNoDriver, text))
	case noLibrary:
		return nil, verbs.NewOpError(op, "", 0, fmt.Errorf("%w: %s; install the NVIDIA driver, or start the container with --gpus all", ErrNoDriver, text))
	}
	d := &Driver{lib: lib}
	var o outcome
	d.version, d.count, o = cStart(lib)
	if err := d.failed(o); err != nil {
		return nil, verbs.NewOpError(op, "", 0, err)
	}
	return d, nil
}

// Version returns the newest CUDA version that the driver supports, such as 13.0.
func (d *Driver) Version() string { return fmt.Sprintf("%d.%d", d.version/1000, d.version%1000/10) }

// Device describes a GPU.
type Device struct {
	// Ordinal is the GPU's number for Open, starting at 0. CUDA numbers the fastest GPU first, unlike
	// nvidia-smi. CUDA_DEVICE_ORDER=PCI_BUS_ID and CUDA_VISIBLE_DEVICES change the numbering.
	Ordinal int
	// Name is the product name.
	Name string
	// PCI is the PCI address in sysfs notation, such as 0000:18:00.0.
	PCI string
	// Memory is the total memory in bytes.
	Memory uint64
	// Compute is the compute capability, such as 9.0.
	Compute string
	// DMABuf reports whether the driver can export memory as a dma-buf (Memory.DMABuf).
	DMABuf bool
	// GPUDirect reports whether NICs can access the memory directly (GPUDirect RDMA).
	GPUDirect bool
}

// deviceInfo is a Device in the driver's form.
type deviceInfo struct {
	name, pci    string
	bytes        uint64
	major, minor int
	dmaBuf, rdma bool
}

// Devices returns the GPUs in driver order. The list may be empty.
func (d *Driver) Devices() ([]Device, error) {
	devices := make([]Device, d.count)
	for i := range devices {
		info, o := cDescribe(d.lib, i)
		if err := d.failed(o); err != nil {
			return nil, verbs.NewOpError("list GPUs", gpuName(i), 0, err)
		}
		devices[i] = Device{
			Ordinal: i, Name: info.name, PCI: strings.ToLower(info.pci), Memory: info.bytes,
			Compute: fmt.Sprintf("%d.%d", info.major, info.minor), DMABuf: info.dmaBuf, GPUDirect: info.rdma,
		}
	}
	return devices, nil
}

// Devices loads the system's driver and returns its GPUs. Errors are as in Load.
func Devices() ([]Device, error) {
	d, err := Load(Config{})
	if err != nil {
		return nil, err
	}
	return d.Devices()
}

// Open loads the system's driver and opens a GPU. Errors are as in Load and Driver.Open.
func Open(ordinal int) (*GPU, error) {
	d, err := Load(Config{})
	if err != nil {
		return nil, err
	}
	return d.Open(ordinal)
}
