package roce

import (
	"hash/crc32"

	"golang.org/x/sys/cpu"
)

// folds is set if the CPU multiplies 64-bit polynomials, wide if it multiplies eight of them at once. The
// flags include operating system support for the registers.
var (
	folds = cpu.X86.HasPCLMULQDQ && cpu.X86.HasAVX
	wide  = folds && cpu.X86.HasAVX512F && cpu.X86.HasAVX512VL && cpu.X86.HasAVX512VPCLMULQDQ
)

const (
	// narrowMin is the minimum number of bytes for foldNarrow.
	narrowMin = 128
	// wideMin is the minimum number of bytes for foldWide.
	wideMin = 256
)

// factors fold a message. Only the remainder of the message matters, so any part may be replaced by
// another with the same remainder. To fold 128 bits onto the 128 bits d bits later, each half is
// multiplied by the power of x for its distance, modulo the polynomial, and both products are
// added. (Gopal and others, "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ
// Instruction", Intel 2009.)
//
//	bits   0..63   times x^(d+32)     the first half, further from the end
//	     64..127   times x^(d-32)
//
// The 32 is the width of the remainder. The highest bit of a factor, 63, stands for x^-1, because a
// product of two such polynomials is one bit shorter than its register.
type factors [2]uint64

// factorTable holds the factors, by the distance in bits, and the constants of REDUCE:
//
//	  0 | 2048 | 1536 | 1024 |  512 |   of a register of 512 bits from another
//	 64 |  384 |  256 |  128 |    - |   of a register of 128 bits from another
//	128 | x^95 | x^63 | reciprocal | polynomial |   eight bytes each
type factorTable [10]factors

var table = newFactorTable(4*512, 3*512, 2*512, 512, 3*128, 2*128, 128)

func newFactorTable(bits ...int) *factorTable {
	t := &factorTable{}
	for i, b := range bits {
		t[i] = factors{uint64(power(one>>1, b+32)) << 1, uint64(power(one>>1, b-32)) << 1}
	}
	t[8] = factors{uint64(power(one>>1, 95)) << 32, uint64(power(one>>1, 63)) << 32}
	t[9] = factors{reciprocal(), crc32.IEEE << 1}
	return t
}

// reciprocal returns the quotient of x^96 by the polynomial without its highest and lowest term, which
// do not matter. Bit 64-i stands for x^i.
func reciprocal() (q uint64) {
	r := one // the remainder of x^(95-i) during the division
	for range 32 {
		r = timesX(r)
	}
	for i := 63; i > 0; i-- {
		if r&1 != 0 {
			q |= 1 << (64 - i)
		}
		r = timesX(r)
	}
	return q
}

// foldSum is checksum for CPUs that multiply polynomials.
func foldSum(crc uint32, b []byte, wide bool) uint32 {
	crc = ^crc
	switch n := len(b) &^ 15; {
	case wide && n >= wideMin:
		crc, b = foldWide(crc, &b[0], n, table), b[n:]
	case n >= narrowMin:
		crc, b = foldNarrow(crc, &b[0], n, table), b[n:]
	case n > 0: // 36 bytes take 30 ns instead of 37 with the table, 12 bytes the same (Cascade Lake)
		n = len(b) &^ 3
		crc, b = foldShort(crc, &b[0], n, table), b[n:]
	}
	return ^short(crc, b)
}

// foldCopy is checksumCopy for CPUs that multiply polynomials, and at least narrowMin bytes.
func foldCopy(crc uint32, dst, src []byte, wide bool) uint32 {
	n := len(src) &^ 15
	dst = dst[:len(src)]
	if crc = ^crc; wide && n >= wideMin {
		crc = foldWideCopy(crc, &dst[0], &src[0], n, table)
	} else {
		crc = foldNarrowCopy(crc, &dst[0], &src[0], n, table)
	}
	copy(dst[n:], src[n:])
	return ^short(crc, dst[n:])
}

// foldWide, foldNarrow and foldShort return the CRC of n bytes, with crc before them, both without
// inversion. n is a multiple of 16 and at least wideMin or narrowMin, for foldShort a multiple of 4 and
// at least 4.
//
//go:noescape
func foldWide(crc uint32, p *byte, n int, k *factorTable) uint32

//go:noescape
func foldNarrow(crc uint32, p *byte, n int, k *factorTable) uint32

//go:noescape
func foldShort(crc uint32, p *byte, n int, k *factorTable) uint32

// foldWideCopy and foldNarrowCopy also copy the bytes from src to dst.
//
//go:noescape
func foldWideCopy(crc uint32, dst, src *byte, n int, k *factorTable) uint32

//go:noescape
func foldNarrowCopy(crc uint32, dst, src *byte, n int, k *factorTable) uint32
