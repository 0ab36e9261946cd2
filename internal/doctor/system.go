package doctor

import (
	"path"
	"strings"
)

// System is the operating system, and the container around this process.
type System struct {
	OS     string `json:"os"`
	Kernel string `json:"kernel,omitempty"`
	Distro string `json:"distro,omitempty"`

	// Container is empty outside of a container, otherwise the kind: docker, podman,
	// kubernetes, lxc, or what the container says of itself.
	Container string `json:"container,omitempty"`

	family string // debian or rhel, "" if it is neither
	ubuntu bool
}

// readSystem finds out where this process runs.
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

// container returns the kind of container around this process. There is no one way to
// know; these are the marks that container managers leave.
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

// install says how to install packages with the package manager of the machine, or with
// each that is known if the machine's is not.
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

// onHost says in a container that a step is to be done outside of it.
func (e *exam) onHost(step string) string {
	if e.System.Container != "" {
		return "On the host, not in this container: " + step
	}
	return step
}

// judgeContainer reports what a container changes, other than what the findings about
// devices and limits say already.
func (e *exam) judgeContainer() {
	if e.System.Container == "" {
		return
	}
	for line := range strings.Lines(e.text(path.Join("/sys/fs/cgroup", e.cgroup(), "rdma.max"))) {
		if device, limits, _ := strings.Cut(strings.TrimSpace(line), " "); strings.Contains(limits, "=0") {
			e.report("container", Warning, "the rdma cgroup limits "+device+" to "+limits,
				"The kernel refuses to open the device or to make objects on it beyond that limit.",
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
