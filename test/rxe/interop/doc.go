// Package interop tests softnic's RoCE v2 against the kernel's, in the virtual machine of test/rxe,
// where rxe0 on net0 is connected to rxe1 on net1.
package interop
