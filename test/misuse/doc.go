// Package misuse calls the public packages in ways that no correct program needs: Close from several goroutines at once, and functions with
// zero values. They return errors; they neither race nor crash.
package misuse
