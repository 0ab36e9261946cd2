package doctor

import (
	"os"
	"runtime"
)

// Host returns the machine that this process runs on, as the process sees it.
func Host() Machine {
	return Machine{OS: runtime.GOOS, Root: os.DirFS("/"), Env: os.Getenv, Open: tryOpen}
}

// tryOpen opens a device file for reading and writing. Only opening it checks everything: file
// permissions, security modules, and the device cgroup.
func tryOpen(name string) error {
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return f.Close()
}
