package verbs

import "time"

// rnrTimers maps the 5-bit RNR NAK timer code to hundredths of a millisecond (IBTA
// 1.4 table 45). Code 0 is the longest.
var rnrTimers = [32]time.Duration{
	65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192,
	256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
}

// RNRTimer returns the delay before a requester retries after an RNR NAK with the given code. Only the
// low five bits of code are used.
func RNRTimer(code uint8) time.Duration { return rnrTimers[code&31] * 10 * time.Microsecond }

// AckTimeout returns the acknowledgement timeout of a code: 4.096 µs times two to the power of
// code. Code 0, which disables the timeout, returns 0. Only the low five bits of code are used, as
// on the wire.
func AckTimeout(code uint8) time.Duration {
	if code &= 31; code == 0 {
		return 0
	}
	return 4096 * time.Nanosecond << code
}
