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

// func fold(crc uint32, p *byte, n int, k *factorTable, rest *[16]byte)
TEXT ·fold(SB), NOSPLIT, $0-40
	MOVL crc+0(FP), AX
	MOVQ p+8(FP), SI
	MOVQ n+16(FP), CX
	MOVQ k+24(FP), R8
	MOVQ rest+32(FP), DI

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
	VMOVDQU         X0, (DI)
	VZEROUPPER                    // or SSE code that follows would pay for the upper halves
	RET

// func foldCopy(crc uint32, dst, src *byte, n int, k *factorTable, rest *[16]byte)
TEXT ·foldCopy(SB), NOSPLIT, $0-48
	MOVL crc+0(FP), AX
	MOVQ dst+8(FP), DX
	MOVQ src+16(FP), SI
	MOVQ n+24(FP), CX
	MOVQ k+32(FP), R8
	MOVQ rest+40(FP), DI

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
	VMOVDQU         X0, (DI)
	VZEROUPPER
	RET
