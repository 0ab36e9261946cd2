// Package interop tests our RoCEv2 against the kernel's. The tests run in the virtual machine of test/rxe,
// where rxe0 on net0 faces rxe1 on net1.
package interop
