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
			continue // ib_uverbs is not loaded; reported separately
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

// filesMissing reports device files that the kernel has but this process cannot see.
func (e *exam) filesMissing(files []string) {
	found := "missing: " + strings.Join(files, ", ")
	switch e.System.Container {
	case "":
		e.report("access", Problem, found, "The kernel has the devices, but udev has not created their files.",
			"udevadm trigger --subsystem-match=infiniband_verbs",
			"Then check with ls -l /dev/infiniband.")
	case "kubernetes":
		e.report("access", Problem, found, "The node has RDMA devices, but this pod has none of them.",
			"Install an RDMA device plugin on the cluster and request its resource in resources.limits of the pod, for example rdma/hca: 1.",
			"docs/rdma-setup.md has a working pod specification.")
	default:
		e.report("access", Problem, found, "The host has RDMA devices, but this container has none of them.",
			"Start the container with --device=/dev/infiniband --ulimit memlock=-1 and, for RoCE, --network=host.")
	}
}

// refused reports a device file that cannot be opened.
func (e *exam) refused(d *Device, err error) {
	found := fmt.Sprintf("%s: %v", d.File, err)
	switch {
	case errors.Is(err, syscall.EPERM) && e.System.Container != "":
		e.report("access", Problem, found, "The device file exists, but the container's device cgroup does not allow the device.",
			"Start the container with --device=/dev/infiniband instead of mounting the directory with --volume.")
	case errors.Is(err, fs.ErrPermission):
		e.report("access", Problem, found, "This user has no permission to open the file"+e.mode(d.File)+".",
			"As root: chmod 0666 "+d.File+" lasts until the next boot.",
			`For good: echo 'KERNEL=="uverbs*", MODE="0666"' > /etc/udev/rules.d/99-uverbs.rules, then udevadm control --reload and udevadm trigger.`,
			"Or run the program as root.")
	default:
		e.report("access", Problem, found, "The kernel refuses to open the device. The device may be disappearing, or its driver has failed.",
			"dmesg | tail shows the reason.")
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
