// Package traffic holds the tests that move data between hosts on software NICs, in every
// scheme: contents, order, notifications, messages, atomics, shared receives, policies, ways to
// poll, and what happens when a request fails.
package traffic
