// Package misuse tests calls that correct programs never make: Close of one public object from
// several goroutines, where one call closes and the others wait for it; and every exported function
// and method with nil arguments and zero values, which return errors.
package misuse
