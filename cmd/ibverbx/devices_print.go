package main

import (
	"errors"
	"fmt"

	"ibverbx/internal/perf/report"
	"ibverbx/verbs"
)

// describe queries a device for all fields that the devices command prints.
func describe(ctx verbs.Context) (device, error) {
	a, err := ctx.QueryDevice()
	if err != nil {
		return device{}, err
	}
	d := device{
		Name: ctx.Device().Name(), Provider: a.Provider, Link: a.Link, Transport: "InfiniBand", FWVersion: a.FWVersion,
		NodeGUID: a.NodeGUID.String(), SysImageGUID: a.SysImageGUID.String(),
		VendorID: a.VendorID, VendorPartID: a.VendorPartID, HWVersion: a.HWVersion,
		Limits: limits{
			MaxMRSize: a.MaxMRSize, MaxMsgSize: a.MaxMsgSize, MaxQP: a.MaxQP, MaxQPWR: a.MaxQPWR, MaxSGE: a.MaxSGE,
			MaxInline: a.MaxInline, MaxCQ: a.MaxCQ, MaxCQE: a.MaxCQE, MaxMR: a.MaxMR, MaxPD: a.MaxPD,
			MaxQPRdAtomic: a.MaxQPRdAtomic, MaxQPInitRdAtomic: a.MaxQPInitRdAtomic, MaxAH: a.MaxAH,
			MaxSRQ: a.MaxSRQ, MaxSRQWR: a.MaxSRQWR, MaxSRQSGE: a.MaxSRQSGE,
		},
		AtomicCap: a.Atomic.String(), Capabilities: capabilityNames(a.Capabilities),
		atomic: a.Atomic, caps: a.Capabilities,
	}
	for n := 1; n <= a.Ports; n++ {
		p, err := describePort(ctx, n)
		if err != nil {
			return device{}, fmt.Errorf("%s, port %d: %w", d.Name, n, err)
		}
		d.Ports = append(d.Ports, p)
	}
	return d, nil
}

func describePort(ctx verbs.Context, n int) (portInfo, error) {
	a, err := ctx.QueryPort(n)
	if err != nil {
		return portInfo{}, err
	}
	p := portInfo{
		Port: n, State: a.State.String(), MaxMTU: a.MaxMTU.Bytes(), ActiveMTU: a.ActiveMTU.Bytes(),
		SMLID: a.SMLID, LID: a.LID, LMC: a.LMC, LinkLayer: a.LinkLayer.String(), MaxMsg: a.MaxMsg,
		SpeedMbps: a.SpeedMbps, PKeys: a.PKeys, GIDRows: a.GIDs, GIDs: []gidRow{}, attr: a,
	}
	for i := range a.GIDs {
		e, err := ctx.QueryGID(n, i)
		if errors.Is(err, verbs.ErrNotFound) {
			continue
		}
		if err != nil {
			return portInfo{}, err
		}
		if !e.GID.IsZero() {
			p.GIDs = append(p.GIDs, gidRow{Index: e.Index, GID: e.GID.String(), Type: e.Type.String(), NetDev: e.NetDev})
		}
	}
	return p, nil
}

// capabilityNames lists the capabilities in c.
func capabilityNames(c verbs.Capabilities) []string {
	names := []string{}
	for _, k := range [...]struct {
		bit  verbs.Capabilities
		name string
	}{
		{verbs.CapRC, "RC"},
		{verbs.CapUC, "UC"},
		{verbs.CapUD, "UD"},
		{verbs.CapSRQ, "SRQ"},
		{verbs.CapSRQOnUC, "SRQ_ON_UC"},
		{verbs.CapSRQOnUD, "SRQ_ON_UD"},
		{verbs.CapSQD, "SQD"},
		{verbs.CapDMABuf, "DMABUF"},
		{verbs.CapTimestamp, "TIMESTAMP"},
		{verbs.CapFlushOnPost, "FLUSH_ON_POST"},
		{verbs.CapSeal, "SEAL"},
	} {
		if c&k.bit != 0 {
			names = append(names, k.name)
		}
	}
	return names
}

// printNames prints names only, like ibv_devinfo -l.
func printNames(p *printer, devices []device) {
	p.printf("%s found:\n", report.Plural(len(devices), "HCA"))
	for i := range devices {
		p.printf("\t%s\n", devices[i].Name)
	}
	p.println("")
}

// printDevice prints a device like ibv_devinfo, including its tabs.
func printDevice(p *printer, d *device, verbose bool) {
	p.printf("hca_id:\t%s\n", d.Name)
	p.printf("\ttransport:\t\t\t%s (0)\n", d.Transport)
	p.printf("\tprovider:\t\t\t%s\n", d.Provider)
	p.printf("\tlink:\t\t\t\t%s\n", d.Link)
	p.printf("\tfw_ver:\t\t\t\t%s\n", d.FWVersion)
	p.printf("\tnode_guid:\t\t\t%s\n", d.NodeGUID)
	p.printf("\tsys_image_guid:\t\t\t%s\n", d.SysImageGUID)
	p.printf("\tvendor_id:\t\t\t%#04x\n", d.VendorID)
	p.printf("\tvendor_part_id:\t\t\t%d\n", d.VendorPartID)
	p.printf("\thw_ver:\t\t\t\t0x%X\n", d.HWVersion)
	p.printf("\tphys_port_cnt:\t\t\t%d\n", len(d.Ports))
	if verbose {
		printLimits(p, d)
	}
	for i := range d.Ports {
		printPort(p, &d.Ports[i], verbose)
	}
}

func printLimits(p *printer, d *device) {
	l := &d.Limits
	p.printf("\tmax_mr_size:\t\t\t%#x\n", l.MaxMRSize)
	p.printf("\tmax_qp:\t\t\t\t%d\n", l.MaxQP)
	p.printf("\tmax_qp_wr:\t\t\t%d\n", l.MaxQPWR)
	p.printf("\tcapabilities:\t\t\t0x%08x\n", uint32(d.caps))
	for _, name := range d.Capabilities {
		p.printf("\t\t\t\t\t%s\n", name)
	}
	p.printf("\tmax_sge:\t\t\t%d\n", l.MaxSGE)
	p.printf("\tmax_inline:\t\t\t%d\n", l.MaxInline)
	p.printf("\tmax_cq:\t\t\t\t%d\n", l.MaxCQ)
	p.printf("\tmax_cqe:\t\t\t%d\n", l.MaxCQE)
	p.printf("\tmax_mr:\t\t\t\t%d\n", l.MaxMR)
	p.printf("\tmax_pd:\t\t\t\t%d\n", l.MaxPD)
	p.printf("\tmax_qp_rd_atom:\t\t\t%d\n", l.MaxQPRdAtomic)
	p.printf("\tmax_qp_init_rd_atom:\t\t%d\n", l.MaxQPInitRdAtomic)
	p.printf("\tatomic_cap:\t\t\t%s (%d)\n", d.AtomicCap, uint8(d.atomic))
	p.printf("\tmax_ah:\t\t\t\t%d\n", l.MaxAH)
	p.printf("\tmax_srq:\t\t\t%d\n", l.MaxSRQ)
	if l.MaxSRQ > 0 {
		p.printf("\tmax_srq_wr:\t\t\t%d\n", l.MaxSRQWR)
		p.printf("\tmax_srq_sge:\t\t\t%d\n", l.MaxSRQSGE)
	}
}

func printPort(p *printer, o *portInfo, verbose bool) {
	a := &o.attr
	p.printf("\t\tport:\t%d\n", o.Port)
	p.printf("\t\t\tstate:\t\t\t%s (%d)\n", a.State, uint8(a.State))
	p.printf("\t\t\tmax_mtu:\t\t%s\n", a.MaxMTU)
	p.printf("\t\t\tactive_mtu:\t\t%s\n", a.ActiveMTU)
	p.printf("\t\t\tsm_lid:\t\t\t%d\n", a.SMLID)
	p.printf("\t\t\tport_lid:\t\t%d\n", a.LID)
	p.printf("\t\t\tport_lmc:\t\t0x%02x\n", a.LMC)
	p.printf("\t\t\tlink_layer:\t\t%s\n", a.LinkLayer)
	if verbose {
		p.printf("\t\t\tmax_msg_sz:\t\t%#x\n", a.MaxMsg)
		p.printf("\t\t\tpkey_tbl_len:\t\t%d\n", a.PKeys)
		p.printf("\t\t\tgid_tbl_len:\t\t%d\n", a.GIDs)
		if a.SpeedMbps > 0 {
			p.printf("\t\t\tactive_speed:\t\t%.1f Gbps\n", float64(a.SpeedMbps)/1e3)
		}
		for _, g := range o.GIDs {
			p.printf("\t\t\tGID[%3d]:\t\t%s, %s\n", g.Index, g.GID, g.Type)
		}
	}
	p.println("")
}
