package abi

import (
	"encoding/binary"
	"testing"
)

// TestLayouts: the structures, and fields after padding or a union, have the sizes and offsets of
// rdma_user_cm.h.
func TestLayouts(t *testing.T) {
	for _, tt := range []struct {
		name string
		v    any
		want int
	}{
		{"create_id", createID{}, 24},
		{"destroy_id", destroyID{}, 16},
		{"bind_ip", bindIP{}, 40},
		{"resolve_ip", resolveIP{}, 64},
		{"resolve_route", resolveRoute{}, 8},
		{"query_route_resp", queryRoute{}, 208},
		{"conn_param", connParam{}, 272},
		{"connect", connect{}, 288},
		{"listen", listen{}, 8},
		{"accept", accept{}, 296},
		{"reject", reject{}, 264},
		{"disconnect", oneID{}, 4},
		{"init_qp_attr", initQPAttr{}, 16},
		{"event_resp", event{}, 336},
		{"event_resp of datagrams", udEvent{}, 336},
		{"join_ip_mcast", joinIP{}, 48},
		{"set_option", setOption{}, 24},
		{"notify", notify{}, 8},
		{"migrate_id", migrateID{}, 16},
		{"ib_user_path_rec", pathRecord{}, 64},
		{"ib_uverbs_ah_attr", address{}, 32},
		{"ib_uverbs_qp_attr", qpAttr{}, 144},
	} {
		if got := binary.Size(tt.v); got != tt.want {
			t.Errorf("%s has %d bytes, want %d", tt.name, got, tt.want)
		}
	}
}
