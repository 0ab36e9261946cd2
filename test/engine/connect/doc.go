// Package connect holds the tests of cards and of connecting, with peers of this
// implementation and of the C++ one.
package connect
