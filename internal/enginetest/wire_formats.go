package enginetest

import (
	"encoding/binary"

	"ibverbx/verbs"
)

// GoodCard is a valid encoded card, with two lanes on two rails. Tests corrupt it in one place at a
// time.
const GoodCard = `{"version":2,"incarnation":77,"rails":2,"max_msg_sz":1048576,"max_rd_atomic":16,"scheme":"tally","data_lanes":1,
 "atomic_rail":1,"message_lane":1,"notify_lane":-1,"limits":{"send_depth":256,"recv_depth":128},"window":64,"lanes":[
 {"rail":0,"qpn":17,"psn":5,"gid":"::ffff:10.0.0.1","mtu":5,"max_rd_atomic":16,"max_dest_rd_atomic":16},
 {"rail":1,"qpn":17,"psn":6,"gid":"::ffff:10.0.0.2","mtu":5,"max_rd_atomic":16,"max_dest_rd_atomic":16}]}`

// DQPLBNumber returns the sequence number in a DQPLB immediate, and whether it belongs to a
// message's last fragment.
func DQPLBNumber(imm uint32) (n uint32, last bool) {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], imm)
	v := binary.LittleEndian.Uint32(b[:])
	return v & 0xffffff, v>>31 == 1
}

// DQPLBImm returns the DQPLB immediate with a sequence number.
func DQPLBImm(n uint32, last bool) uint32 {
	if last {
		n |= 1 << 31
	}
	var b [4]byte
	binary.LittleEndian.PutUint32(b[:], n)
	return binary.BigEndian.Uint32(b[:])
}

// IsNotification reports whether a request on a lane carries only a record or a notification,
// without user data.
func IsNotification(wr *verbs.SendWR) bool { return wr.Opcode == verbs.OpSend || wr.NumSGE == 0 }
