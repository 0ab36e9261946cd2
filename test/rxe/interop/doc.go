// Package interop holds the tests that hold our RoCEv2 against the kernel's. They run in the
// virtual machine of test/rxe, where rxe0 on net0 faces rxe1 on net1.
package interop
