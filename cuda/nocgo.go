//go:build !(linux && cgo && !386 && !arm && !mips && !mipsle)

package cuda

import "runtime"

// library has no functions in this build.
type library struct{}

// cLoad says why this build cannot open a library. Nothing else of this file is ever called.
func cLoad(string) (*library, string, loadResult) {
	if runtime.GOOS != "linux" {
		return nil, "this package uses libcuda on Linux only, this is " + runtime.GOOS, noBuild
	}
	return nil, "the program was built without cgo (CGO_ENABLED=0) or for a 32-bit system", noBuild
}

// refused is the outcome of every call.
func refused() outcome { return outcome{code: absent, call: "libcuda"} }

func cStart(*library) (version, count int, o outcome)                    { return 0, 0, refused() }
func cExplain(*library, int) (name, text string)                         { return "", "" }
func cDescribe(*library, int) (deviceInfo, outcome)                      { return deviceInfo{}, refused() }
func cRetain(*library, int) (context uintptr, dev int, o outcome)        { return 0, 0, refused() }
func cRelease(*library, int) outcome                                     { return refused() }
func cAlloc(*GPU, int) (uint64, outcome)                                 { return 0, refused() }
func cFree(*GPU, uint64) outcome                                         { return refused() }
func cRange(*GPU, uint64) (base, size uint64, o outcome)                 { return 0, 0, refused() }
func cKind(*GPU, uint64) (pointerKind, outcome)                          { return pointerKind{}, refused() }
func cPin(*GPU, uint64, int) outcome                                     { return refused() }
func cUnpin(*GPU, uint64) outcome                                        { return refused() }
func cStream(*GPU) (uintptr, outcome)                                    { return 0, refused() }
func cKernel(*GPU, string, string) (module, function uintptr, o outcome) { return 0, 0, refused() }
func cLaunch(*GPU, uintptr, uint64, int, uintptr) outcome                { return refused() }
func cUnload(*GPU, uintptr) outcome                                      { return refused() }
func cCopy(*GPU, direction, uint64, uint64, int, uintptr) outcome        { return refused() }
func cSynchronize(*GPU, uintptr) outcome                                 { return refused() }
func cDestroy(*GPU, uintptr) outcome                                     { return refused() }
func cDMABuf(*GPU, uint64, uint64) (int, outcome)                        { return 0, refused() }
func cIPCGet(*GPU, uint64) ([64]byte, outcome)                           { return [64]byte{}, refused() }
func cIPCOpen(*GPU, [64]byte) (uint64, outcome)                          { return 0, refused() }
func cIPCClose(*GPU, uint64) outcome                                     { return refused() }
