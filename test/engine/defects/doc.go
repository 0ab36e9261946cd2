// Package defects holds a test for each known defect of the C++ implementation in torchcomms:
// each provokes one and checks what must happen instead.
package defects
