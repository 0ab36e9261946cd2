//go:build !(linux && cgo && !386 && !arm && !mips && !mipsle)

package cuda

import "runtime"

// library is empty in this build.
type library struct{}

// cLoad explains why this build cannot open a library. The other functions are never called.
func cLoad(string) (*library, string, loadResult) {
	if runtime.GOOS != "linux" {
		return nil, "this package uses libcuda on Linux only, this is " + runtime.GOOS, noBuild
	}
	return nil, "the program was built without cgo (CGO_ENABLED=0) or for a 32-bit system", noBuild
}

// unavailable is the outcome of every call.
func unavailable() outcome { return outcome{code: codeAbsent, call: "libcuda"} }

func cStart(*library) (version, count int, o outcome) { return 0, 0, unavailable() }
func cExplain(*library, int) (name, text string)      { return "", "" }
func cDescribe(*library, int) (deviceInfo, outcome)   { return deviceInfo{}, unavailable() }

func cRetain(*library, int) (context uintptr, dev int, o outcome) { return 0, 0, unavailable() }
func cRelease(*library, int) outcome                              { return unavailable() }
func cAlloc(*GPU, int) (uint64, outcome)                          { return 0, unavailable() }
func cFree(*GPU, uint64) outcome                                  { return unavailable() }
func cRange(*GPU, uint64) (base, size uint64, o outcome)          { return 0, 0, unavailable() }

func cKind(*GPU, uint64) (pointerKind, outcome)                          { return pointerKind{}, unavailable() }
func cPin(*GPU, uint64, int) outcome                                     { return unavailable() }
func cUnpin(*GPU, uint64) outcome                                        { return unavailable() }
func cStream(*GPU) (uintptr, outcome)                                    { return 0, unavailable() }
func cKernel(*GPU, string, string) (module, function uintptr, o outcome) { return 0, 0, unavailable() }
func cLaunch(*GPU, uintptr, uint64, int, uintptr) outcome                { return unavailable() }
func cUnload(*GPU, uintptr) outcome                                      { return unavailable() }
func cCopy(*GPU, direction, uint64, uint64, int, uintptr) outcome        { return unavailable() }
func cSynchronize(*GPU, uintptr) outcome                                 { return unavailable() }
func cDestroy(*GPU, uintptr) outcome                                     { return unavailable() }
func cDMABuf(*GPU, uint64, uint64) (int, outcome)                        { return 0, unavailable() }
func cIPCGet(*GPU, uint64) ([64]byte, outcome)                           { return [64]byte{}, unavailable() }
func cIPCOpen(*GPU, [64]byte) (uint64, outcome)                          { return 0, unavailable() }
func cIPCClose(*GPU, uint64) outcome                                     { return unavailable() }
