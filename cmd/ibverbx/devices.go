package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"ibverbx/cuda"
	"ibverbx/peer"
	"ibverbx/settings"
	"ibverbx/verbs"
)

// newDevices builds the devices command.
func newDevices(s streams) *cobra.Command {
	var (
		verbose, list, asJSON bool
		name                  string
		nics                  fabricFlags
	)
	cmd := &cobra.Command{
		Use:   "devices",
		Short: "List devices, ports, GIDs, limits and GPUs",
		Long: `List the RDMA devices that this program can use, in the layout of ibv_devinfo(1).
Without RDMA hardware these are soft0 and soft1, software NICs on a memory link inside
this process: the first rail of perf. NVIDIA GPUs follow, each with the NICs that are
closest to it by PCIe, unless --provider softnic asks for software only.`,
		Example: `  ibverbx devices                   what there is
  ibverbx devices -v -d soft0       limits and GID table of one device
  ibverbx devices --json | jq .`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if err := nics.readEnv(cmd, s); err != nil {
				return err
			}
			notes := s.err
			if asJSON || list {
				notes = io.Discard
			}
			from, err := nics.choose(notes)
			if err != nil {
				return err
			}
			n, err := from.all()
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, n.close()) }()
			found, err := describeAll(n.contexts(), name)
			if err != nil {
				return err
			}
			gpus := []gpu{}
			if name == "" && !list && nics.Provider != peer.ProviderSoftNIC {
				gpus = foundGPUs(notes)
			}
			p := printer{w: s.out}
			switch {
			case asJSON:
				return printJSON(s.out, map[string]any{"devices": found, "gpus": gpus})
			case list:
				printNames(&p, found)
			default:
				for i := range found {
					printDevice(&p, &found[i], verbose)
				}
				for i := range gpus {
					printGPU(&p, &gpus[i])
				}
			}
			return p.err
		},
	}
	fl := cmd.Flags()
	fl.SortFlags = false
	fl.BoolVarP(&verbose, "verbose", "v", false, "print limits, capabilities and the GID table")
	fl.StringVarP(&name, "ib-dev", "d", "", "only the `device` of that name")
	fl.BoolVarP(&list, "list", "l", false, "print names only")
	nics.define(cmd, "NICs", func(row *settings.Setting) bool { return row.Name == "provider" || row.Name == "devices" })
	fl.BoolVar(&asJSON, "json", false, "print one JSON object, with everything that --verbose prints")
	return cmd
}

// foundGPUs returns the usable GPUs, and prints why others are not.
func foundGPUs(notes io.Writer) []gpu {
	host := thisHost()
	gpus, err := host.found()
	if err != nil && !errors.Is(err, cuda.ErrNoDriver) && !errors.Is(err, cuda.ErrNoDevice) {
		fmt.Fprintf(notes, "No GPU is usable: %v.\n", err)
	}
	return gpus
}

// describeAll describes all devices, or only the named one.
func describeAll(contexts []verbs.Context, name string) ([]device, error) {
	var found []device
	var names []string
	for _, ctx := range contexts {
		names = append(names, ctx.Device().Name())
		if name != "" && ctx.Device().Name() != name {
			continue
		}
		d, err := describe(ctx)
		if err != nil {
			return nil, err
		}
		found = append(found, d)
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("device %q was not found; there are %s", name, strings.Join(names, " and "))
	}
	return found, nil
}

// device describes an RDMA device for the devices command; --json prints it unchanged.
type device struct {
	Name         string     `json:"name"`
	Provider     string     `json:"provider"`
	Link         string     `json:"link"`
	Transport    string     `json:"transport"`
	FWVersion    string     `json:"fw_ver"`
	NodeGUID     string     `json:"node_guid"`
	SysImageGUID string     `json:"sys_image_guid"`
	VendorID     uint32     `json:"vendor_id"`
	VendorPartID uint32     `json:"vendor_part_id"`
	HWVersion    uint32     `json:"hw_ver"`
	Limits       limits     `json:"limits"`
	AtomicCap    string     `json:"atomic_cap"`
	Capabilities []string   `json:"capabilities"`
	Ports        []portInfo `json:"ports"`

	atomic verbs.AtomicCap
	caps   verbs.Capabilities
}

// limits uses the names of ibv_devinfo.
type limits struct {
	MaxMRSize         uint64 `json:"max_mr_size"`
	MaxMsgSize        uint64 `json:"max_msg_sz"`
	MaxQP             int    `json:"max_qp"`
	MaxQPWR           int    `json:"max_qp_wr"`
	MaxSGE            int    `json:"max_sge"`
	MaxInline         int    `json:"max_inline"`
	MaxCQ             int    `json:"max_cq"`
	MaxCQE            int    `json:"max_cqe"`
	MaxMR             int    `json:"max_mr"`
	MaxPD             int    `json:"max_pd"`
	MaxQPRdAtomic     int    `json:"max_qp_rd_atom"`
	MaxQPInitRdAtomic int    `json:"max_qp_init_rd_atom"`
	MaxAH             int    `json:"max_ah"`
	MaxSRQ            int    `json:"max_srq"`
	MaxSRQWR          int    `json:"max_srq_wr"`
	MaxSRQSGE         int    `json:"max_srq_sge"`
}

// portInfo is one port.
type portInfo struct {
	Port      int      `json:"port"`
	State     string   `json:"state"`
	MaxMTU    int      `json:"max_mtu"`
	ActiveMTU int      `json:"active_mtu"`
	SMLID     uint16   `json:"sm_lid"`
	LID       uint16   `json:"port_lid"`
	LMC       uint8    `json:"port_lmc"`
	LinkLayer string   `json:"link_layer"`
	MaxMsg    uint64   `json:"max_msg_sz"`
	SpeedMbps uint32   `json:"speed_mbps"`
	PKeys     int      `json:"pkey_tbl_len"`
	GIDRows   int      `json:"gid_tbl_len"`
	GIDs      []gidRow `json:"gids"`

	attr verbs.PortAttr
}

// gidRow is one row of a port's GID table.
type gidRow struct {
	Index  int    `json:"index"`
	GID    string `json:"gid"`
	Type   string `json:"type"`
	NetDev string `json:"netdev,omitempty"`
}
