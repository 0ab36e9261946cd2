#include "textflag.h"

// FOLD replaces reg by what it adds to something a distance behind it, whose factors are in
// k, and adds next. VPTERNLOGD $0x96 is the exclusive or of three.
#define FOLD(k, reg, tmp, next) \
	VPCLMULQDQ $0x00, k, reg, tmp \
	VPCLMULQDQ $0x11, k, reg, reg \
	VPTERNLOGD $0x96, next, tmp, reg

// func fold(crc uint32, p *byte, n int, k *[3]factors, rest *[16]byte)
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
	VBROADCASTI32X4 16(R8), Z8    // for 512 bits
	FOLD(Z8, Z0, Z4, Z1)
	FOLD(Z8, Z0, Z4, Z2)
	FOLD(Z8, Z0, Z4, Z3)

one:
	CMPQ CX, $64
	JB   lanes
	FOLD(Z8, Z0, Z4, 0(SI))
	ADDQ $64, SI
	SUBQ $64, CX
	JMP  one

lanes:
	VBROADCASTI32X4 32(R8), Z8    // for 128 bits
	VEXTRACTI32X4   $1, Z0, X1
	VEXTRACTI32X4   $2, Z0, X2
	VEXTRACTI32X4   $3, Z0, X3
	FOLD(X8, X0, X4, X1)
	FOLD(X8, X0, X4, X2)
	FOLD(X8, X0, X4, X3)

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
