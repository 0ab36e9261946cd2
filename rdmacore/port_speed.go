package rdmacore

// portSpeed returns the rate of a port in megabits per second from the codes of ibv_query_port(3),
// or 0 if a code is unknown. The rate is the number of lanes times the nominal lane rate: SDR 2.5,
// DDR 5, QDR 10, FDR10 10, FDR 14, EDR 25, HDR 50, NDR 100 Gb/s.
func portSpeed(width, speed uint8) uint32 {
	var lanes uint32
	switch width {
	case 1:
		lanes = 1
	case 2:
		lanes = 4
	case 4:
		lanes = 8
	case 8:
		lanes = 12
	case 16:
		lanes = 2
	}
	switch speed {
	case 1:
		return lanes * 2500
	case 2:
		return lanes * 5000
	case 4, 8:
		return lanes * 10000
	case 16:
		return lanes * 14000
	case 32:
		return lanes * 25000
	case 64:
		return lanes * 50000
	case 128:
		return lanes * 100000
	}
	return 0
}
