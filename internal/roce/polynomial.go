package roce

import "hash/crc32"

// A CRC is the remainder of a polynomial over GF(2). Here, as in hash/crc32, the highest
// bit of a word is the coefficient of x^0:
//
//	bit   31   30  ..   1    0
//	     x^0  x^1  .. x^30 x^31
//
// Each further byte multiplies the polynomial by x^8. If two messages of equal length differ in one
// place, their CRCs therefore differ by that difference times a power of x that depends only on the
// distance to the end.
const one uint32 = 1 << 31

// times returns a*b modulo the Ethernet polynomial.
func times(a, b uint32) (product uint32) {
	for ; a != 0; a <<= 1 {
		if a&one != 0 {
			product ^= b
		}
		b = timesX(b)
	}
	return product
}

func timesX(a uint32) uint32 {
	if a&1 != 0 {
		return a>>1 ^ crc32.IEEE
	}
	return a >> 1
}

// overX divides by x, which is always possible because the polynomial is odd.
func overX(a uint32) uint32 {
	if a&one != 0 {
		return (a^crc32.IEEE)<<1 | 1
	}
	return a << 1
}

// power returns a^n.
func power(a uint32, n int) uint32 {
	product := one
	for ; n > 0; n >>= 1 {
		if n&1 != 0 {
			product = times(product, a)
		}
		a = times(a, a)
	}
	return product
}

// overWord returns 1/x^32, which reverts four bytes.
func overWord() uint32 {
	a := one
	for range 32 {
		a = overX(a)
	}
	return a
}

// update is crc32.Update for buffers that must stay on the stack.
func update(crc uint32, b []byte) uint32 {
	crc = ^crc
	for _, v := range b {
		crc = crc>>8 ^ crc32.IEEETable[byte(crc)^v]
	}
	return ^crc
}

// field holds the CRC contribution of a 16-bit field, by its two bytes.
type field [2][256]uint32

// newField returns the field that starts distance bytes before the end.
func newField(distance int) *field {
	f := &field{}
	shift := power(one>>8, distance)
	for i := range f {
		for bit := range 8 {
			f[i][1<<bit] = times(1<<(8*i+bit), shift)
		}
		for v := range f[i] {
			low := v & -v
			f[i][v] = f[i][v&^low] ^ f[i][low]
		}
	}
	return f
}

func (f *field) of(v uint16) uint32 { return f[0][v>>8] ^ f[1][v&0xff] }

// identification is the contribution of the IPv4 identification to the CRC after the UDP header.
var identification = newField(prefix4 - 12)

// lengths holds the contributions of both length fields together at that position, by datagram
// length in words.
type lengths [MaxDatagram/4 + 1]uint32

var (
	ipv4Lengths = newLengths(newField(prefix4-10), ip4Len+udpLen)
	ipv6Lengths = newLengths(newField(prefix6-12), udpLen)
)

// newLengths takes the length field of the IP header and the number of bytes it counts beyond the
// datagram.
func newLengths(ip *field, more int) *lengths {
	l, udp := &lengths{}, newField(4)
	for i := range l {
		n := 4 * i
		l[i] = ip.of(uint16(n+more)) ^ udp.of(uint16(n+udpLen))
	}
	return l
}

// reserved makes the fifth of the following bytes count as ones. It is the contribution to the CRC
// four bytes before that byte, by the byte's value.
var reserved = newReserved()

func newReserved() *[256]uint32 {
	r, back := &[256]uint32{}, overWord()
	for v := range r {
		r[v] = times(uint32(0xff^v), back)
	}
	return r
}
