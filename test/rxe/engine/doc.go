// Package engine tests the engine on real kernel RDMA devices, in the virtual machine of test/rxe.
// It has four: rxe0 is connected to rxe1, and rxe2 to rxe3.
package engine
