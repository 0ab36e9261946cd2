package doctor

import (
	"os"
	"runtime"
)

// Host is the machine that this process runs on, as this process sees it.
func Host() Machine {
	return Machine{OS: runtime.GOOS, Root: os.DirFS("/"), Env: os.Getenv, Open: tryOpen}
}

// tryOpen opens a device file for reading and writing. Only that asks everybody who may
// refuse: the permissions of the file, security modules, and the device cgroup.
func tryOpen(name string) error {
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return f.Close()
}
