// Package debugcheck provides costly checks for builds with the race detector or the build tag
// ibverbxdebug. Ordinary builds omit them.
package debugcheck
