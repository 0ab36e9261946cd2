package main

import (
	"regexp"
	"strings"
	"testing"
)

func TestDevices(t *testing.T) {
	out := succeed(t, "devices")
	says(t, out,
		"hca_id:\tsoft0\n\ttransport:\t\t\tInfiniBand (0)\n",
		"hca_id:\tsoft1\n",
		"\tphys_port_cnt:\t\t\t1\n\t\tport:\t1\n\t\t\tstate:\t\t\tPORT_ACTIVE (4)\n",
		"\t\t\tmax_mtu:\t\t4096 (5)\n",
		"\t\t\tlink_layer:\t\tEthernet\n",
	)
	if !regexp.MustCompile(`\tnode_guid:\t\t\t[0-9a-f]{4}(:[0-9a-f]{4}){3}\n`).MatchString(out) {
		t.Errorf("no node_guid in\n%s", out)
	}
	if strings.Contains(out, "max_qp") || strings.Contains(out, "GID[") {
		t.Errorf("limits and GIDs without -v:\n%s", out)
	}
}

func TestDevicesVerbose(t *testing.T) {
	out := succeed(t, "devices", "-v", "-d", "soft1")
	says(t, out, "hca_id:\tsoft1\n", "\tmax_qp:\t\t\t\t", "\tatomic_cap:\t\t\tATOMIC_", "\t\t\tgid_tbl_len:\t\t")
	if !regexp.MustCompile(`\t\t\tGID\[  1\]:\t\t::ffff:[0-9.]+, RoCE v2\n`).MatchString(out) {
		t.Errorf("no IPv4 GID in\n%s", out)
	}
	if strings.Contains(out, "soft0") {
		t.Errorf("-d soft1 prints soft0:\n%s", out)
	}
}

func TestDevicesList(t *testing.T) {
	if out, want := succeed(t, "devices", "-l"), "2 HCAs found:\n\tsoft0\n\tsoft1\n\n"; out != want {
		t.Errorf("devices -l prints %q, want %q", out, want)
	}
}

func TestDevicesUnknown(t *testing.T) {
	status, _, stderr := command(t.Context(), "devices", "-d", "mlx5_0")
	if want := `ibverbx: device "mlx5_0" was not found; there are soft0 and soft1`; status != exitFailure || !strings.Contains(stderr, want) {
		t.Errorf("status %d, stderr %q; want %d and %q", status, stderr, exitFailure, want)
	}
}

func TestDevicesJSON(t *testing.T) {
	list := object(t, "devices")["devices"].([]any)
	if len(list) != 2 {
		t.Fatalf("%d devices, want 2", len(list))
	}
	d := list[0].(map[string]any)
	if d["name"] != "soft0" || d["provider"] != "softnic" || d["link"] != "memory" {
		t.Errorf("the device is %v", d)
	}
	if l := d["limits"].(map[string]any); l["max_qp"].(float64) < 1024 || l["max_sge"].(float64) < 4 {
		t.Errorf("the limits are %v", l)
	}
	p := d["ports"].([]any)[0].(map[string]any)
	if p["port"] != 1.0 || p["state"] != "PORT_ACTIVE" || p["link_layer"] != "Ethernet" {
		t.Errorf("the port is %v", p)
	}
	if g := p["gids"].([]any); len(g) == 0 {
		t.Error("no GIDs")
	}
}
