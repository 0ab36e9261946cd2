package cuda

import (
	"errors"
	"fmt"

	"ibverbx/verbs"
)

// Sentinel errors. Test with errors.Is; the wrapping error has the details. Errors also wrap
// verbs.ErrInvalid, verbs.ErrNotSupported, verbs.ErrBusy and verbs.ErrClosed.
var (
	// ErrNoDriver means that libcuda cannot be opened or is too old.
	ErrNoDriver = fmt.Errorf("%w: no CUDA driver", verbs.ErrNotSupported)
	// ErrNoDevice means that the driver works, but the GPU does not exist.
	ErrNoDevice = fmt.Errorf("%w: no GPU", verbs.ErrNotFound)
	// ErrOutOfMemory means that the GPU, or the host on its behalf, is out of memory.
	ErrOutOfMemory = fmt.Errorf("%w: out of memory", verbs.ErrLimit)
	// ErrDeviceLost means that the GPU or the process's context on it has failed. CUDA then rejects all
	// further work of the process on it, and the contents of its memory are lost.
	ErrDeviceLost = fmt.Errorf("%w: GPU lost", verbs.ErrDeviceFatal)
)

// errRefused is the sentinel for results without a more specific meaning.
var errRefused = errors.New("the CUDA driver refused")

// Error is a failed CUDA driver call. errors.Is matches the sentinel of this package or of verbs that
// corresponds to the code.
type Error struct {
	// Call is the driver function, such as cuMemAlloc.
	Call string
	// Code is the CUresult.
	Code int
	// Name is CUDA's name for the code, such as CUDA_ERROR_OUT_OF_MEMORY.
	Name string
	// Text is CUDA's description of the code.
	Text string
}

// Error implements error.
func (e *Error) Error() string {
	return fmt.Sprintf("%s: %s: %s (%s, %d)", e.Unwrap(), e.Call, e.Text, e.Name, e.Code)
}

// Unwrap returns the sentinel. ErrDeviceLost covers destroyed contexts and the codes after which,
// according to the CUDA documentation, the process must exit before it can use CUDA again.
func (e *Error) Unwrap() error {
	switch e.Code {
	case 2: // CUDA_ERROR_OUT_OF_MEMORY
		return ErrOutOfMemory
	case 100, 101: // NO_DEVICE, INVALID_DEVICE
		return ErrNoDevice
	case 1, 201, 400: // INVALID_VALUE, INVALID_CONTEXT, INVALID_HANDLE
		return verbs.ErrInvalid
	case 4, 214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 810:
		// DEINITIALIZED, ECC_UNCORRECTABLE, NVLINK_UNCORRECTABLE, CONTAINED, ILLEGAL_ADDRESS, LAUNCH_TIMEOUT,
		// CONTEXT_IS_DESTROYED, ASSERT, HARDWARE_STACK_ERROR, ILLEGAL_INSTRUCTION, MISALIGNED_ADDRESS,
		// INVALID_ADDRESS_SPACE, INVALID_PC, LAUNCH_FAILED, TENSOR_MEMORY_LEAK, MPS_CLIENT_TERMINATED
		return ErrDeviceLost
	case 34, 217, 801, 803, 804:
		// STUB_LIBRARY, PEER_ACCESS_UNSUPPORTED, NOT_SUPPORTED, SYSTEM_DRIVER_MISMATCH,
		// COMPAT_NOT_SUPPORTED_ON_DEVICE
		return verbs.ErrNotSupported
	}
	return errRefused
}

// outcome is the result of a call into C. A code of 0 is success.
type outcome struct {
	code int
	call string // the CUDA function; "" on success
}

// codeAbsent is the code of a function missing from the library.
const codeAbsent = -1

// failed reports a failed call as an error; nil for success.
func (d *Driver) failed(o outcome) error {
	switch o.code {
	case 0:
		return nil
	case codeAbsent:
		return fmt.Errorf("%w: the driver lacks %s; update the NVIDIA driver", verbs.ErrNotSupported, o.call)
	}
	name, text := cExplain(d.lib, o.code)
	if name == "" {
		name, text = "unknown to this driver", "error"
	}
	return &Error{Call: o.call, Code: o.code, Name: name, Text: text}
}

// lost reports whether an error means that the GPU and the contents of its memory are lost.
func lost(err error) bool { return errors.Is(err, ErrDeviceLost) }
