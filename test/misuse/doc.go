// Package misuse tests calls that no correct program needs: Close of one public object from several goroutines at once. One call closes, the
// others wait for it.
package misuse
