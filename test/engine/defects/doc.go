// Package defects has a test for each known defect of the C++ implementation in torchcomms: it provokes the
// defect and checks the correct behavior.
package defects
