package doctor

import (
	"path"
	"strings"
)

// System describes the operating system and the container of this process.
type System struct {
	OS     string `json:"os"`
	Kernel string `json:"kernel,omitempty"`
	Distro string `json:"distro,omitempty"`

	// Container is the kind of container: docker, podman, kubernetes, lxc, or its own name. Empty
	// outside a container.
	Container string `json:"container,omitempty"`

	family string // debian or rhel, "" if neither
	ubuntu bool
}

// readSystem detects where this process runs.
func (e *exam) readSystem() {
	e.System.Kernel = e.text("/proc/sys/kernel/osrelease")
	values := map[string]string{}
	for line := range strings.Lines(e.text("/etc/os-release")) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		values[key] = strings.Trim(value, `"'`)
	}
	e.System.Distro = values["PRETTY_NAME"]
	for _, id := range strings.Fields(values["ID"] + " " + values["ID_LIKE"]) {
		switch id {
		case "debian", "ubuntu":
			e.System.family = "debian"
			e.System.ubuntu = e.System.ubuntu || id == "ubuntu"
		case "rhel", "fedora", "centos":
			e.System.family = "rhel"
		}
	}
	e.System.Container = e.container()
}

// container returns the kind of container around this process. In the absence of a standard method,
// it checks the marks that container managers leave.
func (e *exam) container() string {
	if e.m.Env("KUBERNETES_SERVICE_HOST") != "" || e.exists("/var/run/secrets/kubernetes.io") {
		return "kubernetes"
	}
	cgroup := e.text("/proc/1/cgroup") + e.text("/proc/self/cgroup")
	for _, mark := range []struct{ in, kind string }{
		{"kubepods", "kubernetes"},
		{"docker", "docker"},
		{"libpod", "podman"},
		{"lxc", "lxc"},
		{"containerd", "containerd"},
	} {
		if strings.Contains(cgroup, mark.in) {
			return mark.kind
		}
	}
	switch {
	case e.exists("/run/.containerenv"):
		return "podman"
	case e.exists("/.dockerenv"):
		return "docker"
	}
	if kind := e.text("/run/systemd/container"); kind != "" {
		return kind
	}
	return e.m.Env("container")
}

// install returns the steps to install packages with the machine's package manager, or with each
// known one if it is unknown.
func (e *exam) install(debian, rhel string) []string {
	apt, dnf := "apt-get install "+debian, "dnf install "+rhel
	switch e.System.family {
	case "debian":
		return []string{apt}
	case "rhel":
		return []string{dnf}
	}
	return []string{"On Debian and Ubuntu: " + apt, "On Fedora, RHEL and their relatives: " + dnf}
}

// onHost marks a step for the host, if this process runs in a container.
func (e *exam) onHost(step string) string {
	if e.System.Container != "" {
		return "On the host, not in this container: " + step
	}
	return step
}

// judgeContainer reports restrictions of the container that the checks of devices and limits do
// not cover.
func (e *exam) judgeContainer() {
	if e.System.Container == "" {
		return
	}
	for line := range strings.Lines(e.text(path.Join("/sys/fs/cgroup", e.cgroup(), "rdma.max"))) {
		if device, limits, _ := strings.Cut(strings.TrimSpace(line), " "); strings.Contains(limits, "=0") {
			e.report("container", Warning, "the rdma cgroup limits "+device+" to "+limits,
				"Beyond that limit the kernel refuses to open the device or to create objects on it.",
				e.onHost("write \""+device+" hca_handle=max hca_object=max\" to rdma.max of the container's cgroup."))
		}
	}
	e.ok("container", "this process runs in a container (%s)", e.System.Container)
}

// cgroup returns the path of this process in the unified hierarchy of cgroups.
func (e *exam) cgroup() string {
	for line := range strings.Lines(e.text("/proc/self/cgroup")) {
		if p, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			return p
		}
	}
	return "/"
}
