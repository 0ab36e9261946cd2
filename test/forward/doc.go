// Package forward runs real programs, unmodified, through "ibverbx forward" and "ibverbx serve --forward": redis, PostgreSQL and iperf3.
// make test-forward runs it.
package forward
