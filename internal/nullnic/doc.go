// Package nullnic is a NIC that does not move data. It is the baseline of engine benchmarks and an
// instrument for engine tests.
//
// A QP accepts and records work requests. By default it completes every signaled send immediately,
// for benchmarks. A held QP completes sends on command, with the status chosen by the test. It can
// refuse posts from any position of a chain, and complete receives with any fields and bytes.
//
// NICs joined by a [Wire] do move bytes, but only one request per call. Carry executes the oldest
// request of a held QP at the connected QP, and Complete acknowledges it. The test chooses the
// order between QPs, which RC does not define. The order on one QP is kept.
//
// Only the features that the engine uses are supported. A NIC is not safe for concurrent use.
package nullnic
