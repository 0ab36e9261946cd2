package doctor

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// driverConfig is the directory where packages register providers for libibverbs.
const driverConfig = "/etc/libibverbs.d"

// Provider is the libibverbs driver library for one kind of device.
type Provider struct {
	Name string `json:"name"` // mlx5, rxe, ...

	// Path is its library, "" if it is registered but missing.
	Path string `json:"path,omitempty"`
}

// readProviders reads the registered providers. It searches their libraries where libibverbs
// does: in the directory libibverbs next to itself, then like the loader.
func (e *exam) readProviders() {
	for _, file := range e.list(driverConfig) {
		if !strings.HasSuffix(file, ".driver") {
			continue
		}
		for line := range strings.Lines(e.text(path.Join(driverConfig, file))) {
			fields := strings.Fields(line)
			if len(fields) == 2 && fields[0] == "driver" {
				e.Providers = append(e.Providers, Provider{Name: path.Base(fields[1]), Path: e.findProvider(fields[1])})
			}
		}
	}
}

// findProvider returns the path of a provider's library, "" if this libibverbs would not load it.
// driver is a name or, in private builds, a path.
func (e *exam) findProvider(driver string) string {
	abi := e.Library.ProviderABI
	if e.Library.Path == "" || abi == "" {
		return ""
	}
	if strings.HasPrefix(driver, "/") {
		if p := driver + "-" + abi + ".so"; e.exists(p) {
			return p
		}
		return ""
	}
	file := "lib" + driver + "-" + abi + ".so"
	if p := path.Join(path.Dir(e.Library.Path), "libibverbs", file); e.exists(p) {
		return p
	}
	return e.findLibrary(file)
}

// judgeProviders reports the devices without a provider.
func (e *exam) judgeProviders() {
	if e.Library.Path == "" || !e.isELF(e.Library.Path) {
		return // reported separately; without the library the check is pointless
	}
	install := e.install("ibverbs-providers", "libibverbs rdma-core")
	if e.Library.ProviderABI == "" {
		// This is not rdma-core's library, so the providers it loads are unknown.
		e.report("library", Warning, e.Library.Path+" does not name the providers that it loads",
			"It is not a libibverbs of rdma-core, or it is damaged.", e.install("--reinstall libibverbs1 ibverbs-providers", "libibverbs")...)
	}
	for i := range e.Devices {
		d := &e.Devices[i]
		if d.Driver == "" || e.Library.ProviderABI == "" {
			d.served = true // assume that it has a provider
			continue
		}
		j := slices.IndexFunc(e.Providers, func(p Provider) bool { return p.Name == d.Driver })
		switch {
		case j < 0:
			e.report("providers", Problem, fmt.Sprintf("no provider for %s: %s/%s.driver is missing", d.Name, driverConfig, d.Driver),
				"libibverbs is installed without the provider for this device, so programs do not see the device.", install...)
		case e.Providers[j].Path == "":
			e.report("providers", Problem, fmt.Sprintf("no provider for %s: there is no lib%s-%s.so", d.Name, d.Driver, e.Library.ProviderABI),
				"The provider is registered, but its library is missing or belongs to another version of libibverbs. "+
					"Two installations of the RDMA libraries (a distribution's and a vendor's) often cause this.",
				append(slices.Clone(install), "find / -name 'lib"+d.Driver+"-rdmav*.so' lists the installed ones. Remove those that do not belong to "+e.Library.Path)...)
		default:
			d.served = true
			e.ok("providers", "%s is driven by %s", d.Name, e.Providers[j].Path)
		}
	}
}
