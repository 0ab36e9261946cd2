//go:build !race && !heapmem

#include "textflag.h"

// The two stream functions move blocks of four pages (blockSize): line i of each page, then line
// i+1. DI and SI walk along the first page, BX counts the lines that are left in it,
// CX the bytes that are left in all.
//
// SFENCE drains the write-combining buffers. Non-temporal stores are not ordered by
// what orders Go's other stores, and once the goroutine runs on another processor
// nothing there could order them any more, so each call ends with one.

// func streamAVX512(dst, src *byte, n int)
TEXT ·streamAVX512(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX

block:
	MOVL $64, BX

line:
	VMOVDQU64 0(SI), Z0
	VMOVDQU64 4096(SI), Z1
	VMOVDQU64 8192(SI), Z2
	VMOVDQU64 12288(SI), Z3
	VMOVNTDQ  Z0, 0(DI)
	VMOVNTDQ  Z1, 4096(DI)
	VMOVNTDQ  Z2, 8192(DI)
	VMOVNTDQ  Z3, 12288(DI)
	ADDQ      $64, SI
	ADDQ      $64, DI
	DECL      BX
	JNZ       line

	ADDQ $12288, SI // the first page is done, and so are the other three
	ADDQ $12288, DI
	SUBQ $16384, CX
	JNZ  block

	SFENCE
	VZEROUPPER      // or SSE code that follows would pay for the upper halves
	RET

// func streamSSE2(dst, src *byte, n int)
TEXT ·streamSSE2(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX

block:
	MOVL $64, BX

line:
	MOVOU  0(SI), X0
	MOVOU  16(SI), X1
	MOVOU  32(SI), X2
	MOVOU  48(SI), X3
	MOVOU  4096(SI), X4
	MOVOU  4112(SI), X5
	MOVOU  4128(SI), X6
	MOVOU  4144(SI), X7
	MOVOU  8192(SI), X8
	MOVOU  8208(SI), X9
	MOVOU  8224(SI), X10
	MOVOU  8240(SI), X11
	MOVOU  12288(SI), X12
	MOVOU  12304(SI), X13
	MOVOU  12320(SI), X14
	MOVOU  12336(SI), X15
	MOVNTO X0, 0(DI)
	MOVNTO X1, 16(DI)
	MOVNTO X2, 32(DI)
	MOVNTO X3, 48(DI)
	MOVNTO X4, 4096(DI)
	MOVNTO X5, 4112(DI)
	MOVNTO X6, 4128(DI)
	MOVNTO X7, 4144(DI)
	MOVNTO X8, 8192(DI)
	MOVNTO X9, 8208(DI)
	MOVNTO X10, 8224(DI)
	MOVNTO X11, 8240(DI)
	MOVNTO X12, 12288(DI)
	MOVNTO X13, 12304(DI)
	MOVNTO X14, 12320(DI)
	MOVNTO X15, 12336(DI)
	ADDQ   $64, SI
	ADDQ   $64, DI
	DECL   BX
	JNZ    line

	ADDQ $12288, SI
	ADDQ $12288, DI
	SUBQ $16384, CX
	JNZ  block

	SFENCE
	RET

// func movsb(dst, src *byte, n int)
TEXT ·movsb(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	CLD
	REP; MOVSB
	RET
