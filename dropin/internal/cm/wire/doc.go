// Package wire connects the connection managers of several processes with sockets.
//
// A listening port has two sockets: UDP on the RDMA port number, and TCP on any port. To connect, a
// manager queries the UDP socket for the TCP port (a query and a response of fixed size), then
// opens one TCP connection per RDMA connection and sends its messages (package cm) there, each in
// one record of fixed size. Both connections have the same lifetime, so the kernel reports the
// death of a process. A program's own TCP service may use the same number.
//
// Messages are not authenticated. Records of another version or with invalid values close the connection.
//
// The Manager calls [Link.Bind] and [Link.Resolve]. Messages leave through a cm.Conn and arrive at its
// cm.Handler. A format change needs a new version (format.go).
package wire
