#include "textflag.h"

// FOLD replaces reg by what it adds to something a distance behind it, whose factors are in
// k, and adds next. VPTERNLOGD $0x96 is the exclusive or of three.
#define FOLD(k, reg, tmp, next) \
	VPCLMULQDQ $0x00, k, reg, tmp \
	VPCLMULQDQ $0x11, k, reg, reg \
	VPTERNLOGD $0x96, next, tmp, reg

// JOIN folds Z0, Z1 and Z2 onto Z3, which stays in Z0. R8 is the factors.
#define JOIN \
	VBROADCASTI32X4 16(R8), Z8 \ // for 1536 bits
	VBROADCASTI32X4 32(R8), Z9 \ // for 1024 bits
	VBROADCASTI32X4 48(R8), Z10 \ // for 512 bits
	FOLD(Z8, Z0, Z4, Z3) \
	VPCLMULQDQ $0x00, Z9, Z1, Z5 \
	VPCLMULQDQ $0x11, Z9, Z1, Z1 \
	FOLD(Z10, Z2, Z6, Z5) \
	VPTERNLOGD $0x96, Z1, Z2, Z0

// LANES folds the four lanes of Z0 onto the last, which stays in X0.
#define LANES \
	VMOVDQU64       64(R8), Z8 \  // for 384, 256, 128 bits, and zeros
	VEXTRACTI32X4   $3, Z0, X3 \
	VPCLMULQDQ      $0x00, Z8, Z0, Z4 \
	VPCLMULQDQ      $0x11, Z8, Z0, Z0 \
	VPXORQ          Z4, Z0, Z0 \
	VEXTRACTI64X4   $1, Z0, Y1 \
	VPXORQ          Y1, Y0, Y0 \
	VEXTRACTI32X4   $1, Y0, X1 \
	VPTERNLOGD      $0x96, X1, X3, X0

// REDUCE sets AX to the CRC of the 16 bytes in X0. Each of their first two words is multiplied by the
// power of x for its distance; together with the other two they leave 64 bits, W. The quotient of W
// times x^32 by the polynomial is W plus the high half of W times the reciprocal. The remainder is the
// low half of the quotient times the polynomial (Barrett). R8 is the factors.
#define REDUCE \
	VPSLLQ     $32, X0, X1 \
	VPSRLQ     $32, X0, X2 \
	VPSLLQ     $32, X2, X2 \
	VMOVDQU    128(R8), X3 \
	VMOVDQU    144(R8), X4 \
	VPCLMULQDQ $0x00, X3, X1, X1 \
	VPCLMULQDQ $0x10, X3, X2, X2 \
	VPXOR      X1, X0, X0 \
	VPXOR      X2, X0, X0 \
	VPCLMULQDQ $0x01, X4, X0, X1 \
	VPSRLDQ    $8, X0, X0 \
	VPXOR      X1, X0, X0 \
	VPCLMULQDQ $0x10, X4, X0, X0 \
	VPEXTRD    $2, X0, AX

// func foldWide(crc uint32, p *byte, n int, k *factorTable) uint32
TEXT ·foldWide(SB), NOSPLIT, $0-36
	MOVL crc+0(FP), AX
	MOVQ p+8(FP), SI
	MOVQ n+16(FP), CX
	MOVQ k+24(FP), R8

	VMOVD     AX, X0              // and zeros in the rest of Z0
	VPXORD    0(SI), Z0, Z0
	VMOVDQU64 64(SI), Z1
	VMOVDQU64 128(SI), Z2
	VMOVDQU64 192(SI), Z3
	ADDQ      $256, SI
	SUBQ      $256, CX

	VBROADCASTI32X4 0(R8), Z8     // for 2048 bits

four:
	CMPQ CX, $256
	JB   join
	FOLD(Z8, Z0, Z4, 0(SI))
	FOLD(Z8, Z1, Z5, 64(SI))
	FOLD(Z8, Z2, Z6, 128(SI))
	FOLD(Z8, Z3, Z7, 192(SI))
	ADDQ $256, SI
	SUBQ $256, CX
	JMP  four

join:
	JOIN

one:
	CMPQ CX, $64
	JB   lanes
	FOLD(Z10, Z0, Z4, 0(SI))
	ADDQ $64, SI
	SUBQ $64, CX
	JMP  one

lanes:
	LANES
	VMOVDQU 96(R8), X8            // for 128 bits

sixteen:
	CMPQ CX, $16
	JB   done
	FOLD(X8, X0, X4, 0(SI))
	ADDQ $16, SI
	SUBQ $16, CX
	JMP  sixteen

done:
	REDUCE
	MOVL       AX, ret+32(FP)
	VZEROUPPER                    // or SSE code that follows would pay for the upper halves
	RET

// func foldWideCopy(crc uint32, dst, src *byte, n int, k *factorTable) uint32
TEXT ·foldWideCopy(SB), NOSPLIT, $0-44
	MOVL crc+0(FP), AX
	MOVQ dst+8(FP), DX
	MOVQ src+16(FP), SI
	MOVQ n+24(FP), CX
	MOVQ k+32(FP), R8

	VMOVD     AX, X4
	VMOVDQU64 0(SI), Z0
	VMOVDQU64 64(SI), Z1
	VMOVDQU64 128(SI), Z2
	VMOVDQU64 192(SI), Z3
	VMOVDQU64 Z0, 0(DX)
	VMOVDQU64 Z1, 64(DX)
	VMOVDQU64 Z2, 128(DX)
	VMOVDQU64 Z3, 192(DX)
	VPXORD    Z4, Z0, Z0
	ADDQ      $256, SI
	ADDQ      $256, DX
	SUBQ      $256, CX

	VBROADCASTI32X4 0(R8), Z8     // for 2048 bits

four:
	CMPQ CX, $256
	JB   join
	VMOVDQU64 0(SI), Z12
	VMOVDQU64 64(SI), Z13
	VMOVDQU64 128(SI), Z14
	VMOVDQU64 192(SI), Z15
	FOLD(Z8, Z0, Z4, Z12)
	FOLD(Z8, Z1, Z5, Z13)
	FOLD(Z8, Z2, Z6, Z14)
	FOLD(Z8, Z3, Z7, Z15)
	VMOVDQU64 Z12, 0(DX)
	VMOVDQU64 Z13, 64(DX)
	VMOVDQU64 Z14, 128(DX)
	VMOVDQU64 Z15, 192(DX)
	ADDQ $256, SI
	ADDQ $256, DX
	SUBQ $256, CX
	JMP  four

join:
	JOIN

one:
	CMPQ CX, $64
	JB   lanes
	VMOVDQU64 0(SI), Z12
	VMOVDQU64 Z12, 0(DX)
	FOLD(Z10, Z0, Z4, Z12)
	ADDQ $64, SI
	ADDQ $64, DX
	SUBQ $64, CX
	JMP  one

lanes:
	LANES
	VMOVDQU 96(R8), X8            // for 128 bits

sixteen:
	CMPQ CX, $16
	JB   done
	VMOVDQU 0(SI), X12
	VMOVDQU X12, 0(DX)
	FOLD(X8, X0, X4, X12)
	ADDQ $16, SI
	ADDQ $16, DX
	SUBQ $16, CX
	JMP  sixteen

done:
	REDUCE
	MOVL       AX, ret+40(FP)
	VZEROUPPER
	RET

// FOLD1 is FOLD for 16 bytes without AVX-512.
#define FOLD1(k, reg, tmp, next) \
	VPCLMULQDQ $0x00, k, reg, tmp \
	VPCLMULQDQ $0x11, k, reg, reg \
	VPXOR      next, tmp, tmp \
	VPXOR      tmp, reg, reg

// COPY1 is FOLD1 for 16 bytes at off, which it also copies.
#define COPY1(k, reg, tmp, off) \
	VMOVDQU    off(SI), X15 \
	VMOVDQU    X15, off(DX) \
	FOLD1(k, reg, tmp, X15)

// JOIN1 folds X0 to X7 onto the last, which stays in X0. It leaves the factors for 128 bits in X8.
#define JOIN1 \
	VMOVDQU 48(R8), X8 \  // for 512 bits
	FOLD1(X8, X0, X9, X4) \
	FOLD1(X8, X1, X10, X5) \
	FOLD1(X8, X2, X11, X6) \
	FOLD1(X8, X3, X12, X7) \
	VMOVDQU 80(R8), X8 \  // for 256 bits
	FOLD1(X8, X0, X9, X2) \
	FOLD1(X8, X1, X10, X3) \
	VMOVDQU 96(R8), X8 \  // for 128 bits
	FOLD1(X8, X0, X9, X1)

// func foldNarrow(crc uint32, p *byte, n int, k *factorTable) uint32
TEXT ·foldNarrow(SB), NOSPLIT, $0-36
	MOVL crc+0(FP), AX
	MOVQ p+8(FP), SI
	MOVQ n+16(FP), CX
	MOVQ k+24(FP), R8

	VMOVD   AX, X0
	VPXOR   0(SI), X0, X0
	VMOVDQU 16(SI), X1
	VMOVDQU 32(SI), X2
	VMOVDQU 48(SI), X3
	VMOVDQU 64(SI), X4
	VMOVDQU 80(SI), X5
	VMOVDQU 96(SI), X6
	VMOVDQU 112(SI), X7
	ADDQ    $128, SI
	SUBQ    $128, CX
	VMOVDQU 32(R8), X8            // for 1024 bits

eight:
	CMPQ CX, $128
	JB   join
	FOLD1(X8, X0, X9, 0(SI))
	FOLD1(X8, X1, X10, 16(SI))
	FOLD1(X8, X2, X11, 32(SI))
	FOLD1(X8, X3, X12, 48(SI))
	FOLD1(X8, X4, X9, 64(SI))
	FOLD1(X8, X5, X10, 80(SI))
	FOLD1(X8, X6, X11, 96(SI))
	FOLD1(X8, X7, X12, 112(SI))
	ADDQ $128, SI
	SUBQ $128, CX
	JMP  eight

join:
	JOIN1

sixteen:
	CMPQ CX, $16
	JB   done
	FOLD1(X8, X0, X9, 0(SI))
	ADDQ $16, SI
	SUBQ $16, CX
	JMP  sixteen

done:
	REDUCE
	MOVL AX, ret+32(FP)
	RET

// func foldNarrowCopy(crc uint32, dst, src *byte, n int, k *factorTable) uint32
TEXT ·foldNarrowCopy(SB), NOSPLIT, $0-44
	MOVL crc+0(FP), AX
	MOVQ dst+8(FP), DX
	MOVQ src+16(FP), SI
	MOVQ n+24(FP), CX
	MOVQ k+32(FP), R8

	VMOVD   AX, X9
	VMOVDQU 0(SI), X0
	VMOVDQU 16(SI), X1
	VMOVDQU 32(SI), X2
	VMOVDQU 48(SI), X3
	VMOVDQU 64(SI), X4
	VMOVDQU 80(SI), X5
	VMOVDQU 96(SI), X6
	VMOVDQU 112(SI), X7
	VMOVDQU X0, 0(DX)
	VMOVDQU X1, 16(DX)
	VMOVDQU X2, 32(DX)
	VMOVDQU X3, 48(DX)
	VMOVDQU X4, 64(DX)
	VMOVDQU X5, 80(DX)
	VMOVDQU X6, 96(DX)
	VMOVDQU X7, 112(DX)
	VPXOR   X9, X0, X0
	ADDQ    $128, SI
	ADDQ    $128, DX
	SUBQ    $128, CX
	VMOVDQU 32(R8), X8            // for 1024 bits

eight:
	CMPQ CX, $128
	JB   join
	COPY1(X8, X0, X9, 0)
	COPY1(X8, X1, X10, 16)
	COPY1(X8, X2, X11, 32)
	COPY1(X8, X3, X12, 48)
	COPY1(X8, X4, X9, 64)
	COPY1(X8, X5, X10, 80)
	COPY1(X8, X6, X11, 96)
	COPY1(X8, X7, X12, 112)
	ADDQ $128, SI
	ADDQ $128, DX
	SUBQ $128, CX
	JMP  eight

join:
	JOIN1

sixteen:
	CMPQ CX, $16
	JB   done
	COPY1(X8, X0, X9, 0)
	ADDQ $16, SI
	ADDQ $16, DX
	SUBQ $16, CX
	JMP  sixteen

done:
	REDUCE
	MOVL AX, ret+40(FP)
	RET

// LOAD loads the 16 bytes at SI by halves. Encode stores words of eight bytes, and a load that spans two
// recent stores waits until they have reached the cache.
#define LOAD(reg) \
	VMOVQ   0(SI), reg \
	VPINSRQ $1, 8(SI), reg, reg

// func foldShort(crc uint32, p *byte, n int, k *factorTable) uint32
TEXT ·foldShort(SB), NOSPLIT, $0-36
	MOVL crc+0(FP), AX
	MOVQ p+8(FP), SI
	MOVQ n+16(FP), CX
	MOVQ k+24(FP), R8
	MOVQ    CX, BX
	ANDQ    $12, BX               // bytes that do not fill a register: zeros precede them
	VMOVD   AX, X1
	VMOVDQU 96(R8), X8            // for 128 bits
	CMPQ    BX, $8
	JEQ     eight
	JA      twelve
	TESTQ   BX, BX
	JZ      sixteen
	VMOVD   0(SI), X0
	VPXOR   X1, X0, X0
	VPSLLDQ $12, X0, X0
	JMP     more

eight:
	VMOVQ   0(SI), X0
	VPXOR   X1, X0, X0
	VPSLLDQ $8, X0, X0
	JMP     more

twelve:
	VMOVQ   0(SI), X0
	VPINSRD $2, 8(SI), X0, X0
	VPXOR   X1, X0, X0
	VPSLLDQ $4, X0, X0
	JMP     more

sixteen:
	LOAD(X0)
	VPXOR   X1, X0, X0
	MOVQ    $16, BX

more:
	ADDQ BX, SI
	SUBQ BX, CX

next:
	CMPQ CX, $16
	JB   done
	LOAD(X2)
	FOLD1(X8, X0, X9, X2)
	ADDQ $16, SI
	SUBQ $16, CX
	JMP  next

done:
	REDUCE
	MOVL AX, ret+32(FP)
	RET
