// Package debugcheck provides checks that cost something, for the race detector and the build tag
// ibverbxdebug. Ordinary builds contain none of them.
package debugcheck
