package verbs_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"ibverbx/verbs"
)

// Memory for NICs is mapped, freed explicitly, and cannot be freed while it is
// registered. A provider calls Retain in RegisterMemory and Release in MR.Close.
func ExampleAllocMemory() {
	m, err := verbs.AllocMemory(1<<20, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	copy(m.Bytes(), "hello")
	fmt.Println(m.Len(), m.Addr()%4096)

	if err := m.Retain(); err != nil {
		fmt.Println(err)
	}
	fmt.Println(m.Free())
	m.Release()
	fmt.Println(m.Free())
	// Output:
	// 1048576 0
	// free memory: in use by other objects: 1 memory regions or copies use it
	// <nil>
}

// A work request gathers up to four memory ranges.
func ExampleSendWR_SetSGE() {
	wr := verbs.SendWR{WRID: 1, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled | verbs.SendFence}
	wr.SetSGE(
		verbs.SGE{Addr: 0x1000, Length: 64, LKey: 7},
		verbs.SGE{Addr: 0x9000, Length: 4096, LKey: 7},
	)
	fmt.Println(wr.Opcode, wr.Flags, wr.NumSGE, wr.Length())
	// Output: RDMA_WRITE FENCE|SIGNALED 2 4160
}

// The first 40 bytes of a UD receive identify the sender.
func ExampleParseGRH() {
	buf := make([]byte, verbs.GRHLen+100)
	buf[0], buf[7] = 6<<4, 64
	copy(buf[8:], netip.MustParseAddr("2001:db8::1").AsSlice())
	copy(buf[24:], netip.MustParseAddr("2001:db8::2").AsSlice())

	grh, err := verbs.ParseGRH(buf)
	fmt.Println(grh.SGID.Addr(), grh.HopLimit, err)
	// Output: 2001:db8::1 64 <nil>
}

// The error of a failed completion contains its status, wr_id, QP and usual cause.
func ExampleWC_Err() {
	wc := verbs.WC{WRID: 42, Status: verbs.StatusRNRRetryExcErr, QPN: 0x1a2b3c}
	err := wc.Err()
	fmt.Println(err)

	var failed *verbs.WCError
	if errors.As(err, &failed) {
		fmt.Println(failed.Status)
	}
	// Output:
	// completion of wr_id 42 on QP 0x1a2b3c: RNR retry counter exceeded (status 13, vendor error 0x0): the receiver had no receive posted for too long
	// RNR retry counter exceeded
}

// The error of an incomplete transition names the missing attributes.
func ExampleCheckTransition() {
	err := verbs.CheckTransition(verbs.RC, verbs.StateReset, verbs.StateInit, verbs.AttrState|verbs.AttrPort)
	fmt.Println(err)
	// Output: RC QP cannot go from RESET to INIT; missing attributes: ACCESS_FLAGS, PKEY_INDEX
}

// A Wake before a Wait is not lost, and several count as one.
func ExampleWaker() {
	w := verbs.NewWaker()
	w.Wake()
	w.Wake()
	fmt.Println(w.Wait(context.Background()))

	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	fmt.Println(w.Wait(ctx))
	// Output:
	// <nil>
	// context canceled
}

// The GID of a RoCE v2 port is its IP address.
func ExampleGIDFromAddr() {
	gid := verbs.GIDFromAddr(netip.MustParseAddr("192.0.2.7"))
	fmt.Println(gid, gid.Addr())
	// Output: ::ffff:192.0.2.7 192.0.2.7
}

func ExampleRNRTimer() {
	fmt.Println(verbs.RNRTimer(verbs.DefaultMinRNRTimer), verbs.AckTimeout(verbs.DefaultTimeout))
	// Output: 640µs 67.108864ms
}
