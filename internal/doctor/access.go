package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
)

// judgeAccess reports which device files this process cannot open, and why.
func (e *exam) judgeAccess() {
	var open, missing []string
	for i := range e.Devices {
		d := &e.Devices[i]
		if d.File == "" {
			continue // ib_uverbs is not loaded: a finding of its own
		}
		if !e.exists(d.File) {
			d.FileError = "it does not exist"
			missing = append(missing, d.File)
			continue
		}
		if err := e.m.Open(d.File); err != nil {
			d.FileError = err.Error()
			e.refused(d, err)
			continue
		}
		d.opens = true
		open = append(open, d.File)
	}
	if len(missing) > 0 {
		e.filesMissing(missing)
	}
	if len(open) > 0 {
		e.ok("access", "this process can open %s", strings.Join(open, ", "))
	}
}

// filesMissing reports device files that the kernel has and this process does not see.
func (e *exam) filesMissing(files []string) {
	found := "missing: " + strings.Join(files, ", ")
	switch e.System.Container {
	case "":
		e.report("access", Problem, found, "The kernel has the devices, but nobody made files for them. That is the work of udev.",
			"udevadm trigger --subsystem-match=infiniband_verbs",
			"ls -l /dev/infiniband shows whether it helped.")
	case "kubernetes":
		e.report("access", Problem, found, "The node has RDMA devices, and this pod was given none of them.",
			"Install an RDMA device plugin on the cluster and ask for its resource in resources.limits of the pod, for example rdma/hca: 1.",
			"docs/rdma-setup.md has a pod that works.")
	default:
		e.report("access", Problem, found, "The host has RDMA devices, and this container was given none of them.",
			"Start the container with --device=/dev/infiniband --ulimit memlock=-1 and, for RoCE, --network=host.")
	}
}

// refused reports a device file that cannot be opened.
func (e *exam) refused(d *Device, err error) {
	found := fmt.Sprintf("%s: %v", d.File, err)
	switch {
	case errors.Is(err, syscall.EPERM) && e.System.Container != "":
		e.report("access", Problem, found, "The device cgroup of the container does not allow this device, though its file is there.",
			"Start the container with --device=/dev/infiniband instead of mounting the directory with --volume.")
	case errors.Is(err, fs.ErrPermission):
		e.report("access", Problem, found, "This user may not open the file"+e.mode(d.File)+".",
			"As root: chmod 0666 "+d.File+" until the next boot.",
			`For good: echo 'KERNEL=="uverbs*", MODE="0666"' > /etc/udev/rules.d/99-uverbs.rules, then udevadm control --reload and udevadm trigger.`,
			"Or run the program as root.")
	default:
		e.report("access", Problem, found, "The kernel refuses to open the device. It may be going away, or its driver has failed.",
			"dmesg | tail says why.")
	}
}

// mode describes the permissions of a file.
func (e *exam) mode(file string) string {
	info, err := fs.Stat(e.m.Root, name(file))
	if err != nil {
		return ""
	}
	return fmt.Sprintf(" (its permissions are %#o)", info.Mode().Perm())
}
