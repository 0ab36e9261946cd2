// Package misuse tests calls that no correct program needs: Close of one public object from several goroutines at once, where one call closes
// and the others wait for it; and every exported function and method with nil arguments and zero values, which return errors.
package misuse
