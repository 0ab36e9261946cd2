// Command peers compares ibverbx with its alternatives: libc's memcpy, UCX, TCP and TLS in Go,
// rsync, and earlier commits of the project. "make bench-peers" runs it.
//
// Both sides of a row are measured alternately in five rounds (-rounds), each side first in every second round. A
// figure is the median of its rounds, and the ratio compares the two medians. All processes belong to one session, so
// the scheduler gives them equal weight. Run it on an idle machine.
//
// The table goes to standard output as Markdown, and to .cache/bench-peers.json. The exit status is 1 if a row could
// not be measured, and 0 otherwise: missed bars are marked in the table.
package main
