// Package traffic holds the tests that move data between hosts on software NICs, in every scheme: contents,
// order, notifications, messages, atomics, shared receives, policies, polling and failed requests.
package traffic
