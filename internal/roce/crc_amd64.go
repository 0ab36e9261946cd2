package roce

import "golang.org/x/sys/cpu"

// wide is set if the CPU multiplies eight 64-bit polynomials at once. The flags include operating
// system support for the registers.
var wide = cpu.X86.HasAVX512F && cpu.X86.HasAVX512VL && cpu.X86.HasAVX512VPCLMULQDQ

// foldMin is the minimum number of bytes for fold.
const foldMin = 256

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

// factorTable holds the factors of fold, by the distance in bits:
//
//	 0 | 2048 | 1536 | 1024 |  512 |   four registers, and one after the other onto the last
//	64 |  384 |  256 |  128 |    - |   the lanes of one register
type factorTable [8]factors

var folds = newFactorTable(4*512, 3*512, 2*512, 512, 3*128, 2*128, 128)

func newFactorTable(bits ...int) *factorTable {
	t := &factorTable{}
	for i, b := range bits {
		t[i] = factors{uint64(power(one>>1, b+32)) << 1, uint64(power(one>>1, b-32)) << 1}
	}
	return t
}

// foldLong is checksum for at least foldMin bytes.
func foldLong(crc uint32, b []byte) uint32 {
	n := len(b) &^ 15
	var rest [16]byte
	fold(^crc, &b[0], n, folds, &rest)
	return ^short(short(0, rest[:]), b[n:])
}

// copyLong is checksumCopy for at least foldMin bytes.
func copyLong(crc uint32, dst, src []byte) uint32 {
	n := len(src) &^ 15
	dst = dst[:len(src)]
	var rest [16]byte
	foldCopy(^crc, &dst[0], &src[0], n, folds, &rest)
	copy(dst[n:], src[n:])
	return ^short(short(0, rest[:]), dst[n:])
}

// fold folds n bytes to 16 bytes with the same CRC. n is a multiple of 16 and at least foldMin. crc is
// the CRC before them.
//
//go:noescape
func fold(crc uint32, p *byte, n int, k *factorTable, rest *[16]byte)

// foldCopy copies the bytes from src to dst and folds them.
//
//go:noescape
func foldCopy(crc uint32, dst, src *byte, n int, k *factorTable, rest *[16]byte)
