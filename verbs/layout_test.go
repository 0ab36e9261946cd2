package verbs_test

import (
	"reflect"
	"testing"
	"unsafe"

	"ibverbx/verbs"
)

// The flat values cross into C as arrays, so their layout is part of the contract.
func TestLayout(t *testing.T) {
	var (
		send verbs.SendWR
		recv verbs.RecvWR
		wc   verbs.WC
		sge  verbs.SGE
	)
	tests := []struct {
		name      string
		got, want uintptr
	}{
		{"sizeof(SGE)", unsafe.Sizeof(sge), 16},
		{"SGE.Addr", unsafe.Offsetof(sge.Addr), 0},
		{"SGE.Length", unsafe.Offsetof(sge.Length), 8},
		{"SGE.LKey", unsafe.Offsetof(sge.LKey), 12},

		{"sizeof(SendWR)", unsafe.Sizeof(send), 128},
		{"SendWR.WRID", unsafe.Offsetof(send.WRID), 0},
		{"SendWR.RemoteAddr", unsafe.Offsetof(send.RemoteAddr), 8},
		{"SendWR.CompareAdd", unsafe.Offsetof(send.CompareAdd), 16},
		{"SendWR.Swap", unsafe.Offsetof(send.Swap), 24},
		{"SendWR.AH", unsafe.Offsetof(send.AH), 32},
		{"SendWR.Imm", unsafe.Offsetof(send.Imm), 40},
		{"SendWR.RKey", unsafe.Offsetof(send.RKey), 44},
		{"SendWR.RemoteQPN", unsafe.Offsetof(send.RemoteQPN), 48},
		{"SendWR.RemoteQKey", unsafe.Offsetof(send.RemoteQKey), 52},
		{"SendWR.Opcode", unsafe.Offsetof(send.Opcode), 56},
		{"SendWR.Flags", unsafe.Offsetof(send.Flags), 57},
		{"SendWR.NumSGE", unsafe.Offsetof(send.NumSGE), 58},
		{"SendWR.Listed", unsafe.Offsetof(send.Listed), 59},
		{"SendWR.SGE", unsafe.Offsetof(send.SGE), 64},

		{"sizeof(RecvWR)", unsafe.Sizeof(recv), 80},
		{"RecvWR.WRID", unsafe.Offsetof(recv.WRID), 0},
		{"RecvWR.NumSGE", unsafe.Offsetof(recv.NumSGE), 8},
		{"RecvWR.Listed", unsafe.Offsetof(recv.Listed), 9},
		{"RecvWR.SGE", unsafe.Offsetof(recv.SGE), 16},

		{"sizeof(WC)", unsafe.Sizeof(wc), 48},
		{"WC.WRID", unsafe.Offsetof(wc.WRID), 0},
		{"WC.Status", unsafe.Offsetof(wc.Status), 8},
		{"WC.Opcode", unsafe.Offsetof(wc.Opcode), 9},
		{"WC.Flags", unsafe.Offsetof(wc.Flags), 10},
		{"WC.SL", unsafe.Offsetof(wc.SL), 11},
		{"WC.VendorErr", unsafe.Offsetof(wc.VendorErr), 12},
		{"WC.ByteLen", unsafe.Offsetof(wc.ByteLen), 16},
		{"WC.Imm", unsafe.Offsetof(wc.Imm), 20},
		{"WC.QPN", unsafe.Offsetof(wc.QPN), 24},
		{"WC.SrcQPN", unsafe.Offsetof(wc.SrcQPN), 28},
		{"WC.SLID", unsafe.Offsetof(wc.SLID), 32},
		{"WC.PKeyIndex", unsafe.Offsetof(wc.PKeyIndex), 34},
		{"WC.Timestamp", unsafe.Offsetof(wc.Timestamp), 40},
	}
	for _, tt := range tests {
		if tt.got != tt.want {
			t.Errorf("%s = %d, want %d", tt.name, tt.got, tt.want)
		}
	}
}

// The collector would miss a pointer inside a flat value while it passes through C.
func TestFlatValuesHavePointersNowhere(t *testing.T) {
	for _, v := range []any{verbs.SendWR{}, verbs.RecvWR{}, verbs.WC{}, verbs.SGE{}} {
		checkFlat(t, reflect.TypeOf(v).Name(), reflect.TypeOf(v))
	}
}

func checkFlat(t *testing.T, path string, typ reflect.Type) {
	switch typ.Kind() {
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
	case reflect.Array:
		checkFlat(t, path+"[]", typ.Elem())
	case reflect.Struct:
		for i := range typ.NumField() {
			checkFlat(t, path+"."+typ.Field(i).Name, typ.Field(i).Type)
		}
	default:
		t.Errorf("%s is a %s: want unsigned integers of fixed size only", path, typ)
	}
}
