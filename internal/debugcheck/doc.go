// Package debugcheck provides checks for builds with the race detector or the build tag
// ibverbxdebug; ordinary builds omit them. [Guard] detects concurrent use of an object meant for one
// goroutine: [Guard.Enter] panics during another call. [On] is the condition for other checks.
package debugcheck
