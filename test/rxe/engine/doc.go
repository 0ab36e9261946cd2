// Package engine tests the engine on a real kernel RDMA device. The tests run in the virtual machine of
// test/rxe, which has four: rxe0 faces rxe1, and rxe2 faces rxe3.
package engine
