// Package reliable tests package reliable on a real kernel RDMA device, over a lossy network. The tests run
// in the virtual machine of test/rxe, which has four devices: rxe0 faces rxe1, and rxe2 faces rxe3.
package reliable
