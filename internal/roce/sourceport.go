package roce

// SourcePort returns the UDP source port that a flow label other than 0 stands for. It folds 20 bits into
// the 14 of the ports from 0xc000 on, as the Linux kernel (rdma_flow_label_to_udp_sport) and libibverbs
// (ibv_flow_label_to_udp_sport) do.
func SourcePort(flowLabel uint32) uint16 {
	return uint16(0xc000 | (flowLabel^flowLabel>>14&0x3f)&0x3fff)
}
