package interop_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"ibverbx"
	"ibverbx/bootstrap"
	"ibverbx/internal/enginetest"
	"ibverbx/peer"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

const (
	// hostRounds WRITEs of hostPart bytes go from the dialer to the listener.
	hostRounds = 16
	hostPart   = 200_003
	hostPort   = "18515"
)

// TestHost is one of the processes of TestTwoHosts.
func TestHost(t *testing.T) {
	words := strings.Fields(os.Getenv(hostEnv))
	if len(words) != 5 {
		t.Skip("it is one of the processes of TestTwoHosts")
	}
	var nics badNICs
	cfg := peer.Config{
		Auth:    bootstrap.Config{Token: []byte("a token of more than 16 bytes")},
		Open:    nics.open(words[1:3], uint64(len(words[0]))),
		Regions: []peer.RegionConfig{{Name: "memory", Size: 2 * hostRounds * hostPart}},
		QP:      ibverbx.Config{Lanes: 4, FragmentSize: 32 << 10},
	}
	if words[0] == "dial" {
		s, err := peer.Dial(t.Context(), net.JoinHostPort(words[3], hostPort), cfg)
		enginetest.Must(t, err)
		dialing(t, s)
		if nics.lost(words[3:]) == 0 {
			t.Error("no packet was lost, want some")
		}
		enginetest.Must(t, s.Close())
		return
	}
	l, err := peer.Listen(t.Context(), net.JoinHostPort(words[1], hostPort), cfg)
	enginetest.Must(t, err)
	fmt.Printf("listening at %s\n", l.Addr())
	s, err := l.Accept(t.Context())
	enginetest.Must(t, err)
	listening(t, s)
	enginetest.Must(t, s.Close())
	enginetest.Must(t, l.Close())
}

// badNICs are a host's NICs on an impaired network.
type badNICs struct {
	link *softnic.UDPLink
	nics []*softnic.NIC
}

// open opens a NIC on each address.
func (b *badNICs) open(addrs []string, seed uint64) func() (peer.NICs, error) {
	return func() (n peer.NICs, err error) {
		n.Close = b.close
		b.link, err = softnic.NewUDPLink(&softnic.UDPConfig{Seed: seed, Impairment: softnic.Impairment{Loss: 0.01, Reorder: 0.05}})
		for i := 0; i < len(addrs) && err == nil; i++ {
			var ctx verbs.Context
			if ctx, err = b.add(addrs[i]); err == nil {
				n.Rails = append(n.Rails, ibverbx.RailConfig{Context: ctx})
			}
		}
		return n, err
	}
}

func (b *badNICs) add(addr string) (verbs.Context, error) {
	nic, err := softnic.New(b.link, softnic.Config{Addr: netip.MustParseAddr(addr)})
	if err != nil {
		return nil, err
	}
	b.nics = append(b.nics, nic)
	return nic.Open()
}

func (b *badNICs) close() (err error) {
	for _, nic := range b.nics {
		if e := nic.Close(); err == nil {
			err = e
		}
	}
	return err
}

// lost returns the number of lost packets to a peer's NICs.
func (b *badNICs) lost(addrs []string) (n uint64) {
	for i, nic := range b.nics {
		n += b.link.FaultStats(nic, netip.MustParseAddr(addrs[i])).Lost
	}
	return n
}

// dialing writes with and without notification, reads everything back, adds to a counter, and sends a
// message. The first half of its memory is the source, the second half receives the data read.
func dialing(t *testing.T, s *peer.Session) {
	mem, there := s.Local("memory"), s.Remote("memory")
	half := uint64(hostRounds * hostPart)
	enginetest.Fill(mem.Bytes()[:half], 1)
	post := func(wr ibverbx.SendWR, off uint64, n uint32) {
		t.Helper()
		wr.Flags, wr.Remote = verbs.SendSignaled, there
		wr.SetSGE(mem.SGE(off, n))
		if n, err := s.QP.PostSend([]ibverbx.SendWR{wr}); n != 1 {
			t.Fatalf("PostSend = %d, %v, want 1, nil", n, err)
		}
	}
	_, err := s.Recv(t.Context()) // receives are posted
	enginetest.Must(t, err)
	for i := range uint64(hostRounds) {
		op := []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm}[i%2]
		post(ibverbx.SendWR{WRID: i, Opcode: op, RemoteOffset: i * hostPart}, i*hostPart, hostPart)
	}
	for i, wc := range take(t, s.CQ, hostRounds) {
		if wc.WRID != uint64(i) {
			t.Fatalf("completion %d is of request %d, want the order of posting", i, wc.WRID)
		}
	}
	for i := range uint64(hostRounds) {
		post(ibverbx.SendWR{Opcode: verbs.OpRDMARead, RemoteOffset: i * hostPart}, half+i*hostPart, hostPart)
	}
	take(t, s.CQ, hostRounds)
	if !bytes.Equal(mem.Bytes()[:half], mem.Bytes()[half:]) {
		t.Fatal("what was read is not what was written, want the same bytes")
	}
	post(ibverbx.SendWR{Opcode: verbs.OpAtomicFetchAndAdd, CompareAdd: 5, RemoteOffset: (half + 7) &^ 7}, half, 8)
	post(ibverbx.SendWR{Opcode: verbs.OpSend}, 0, 3000)
	take(t, s.CQ, 2)
	fmt.Printf("bytes are the same: %d written and read\n", half)
	enginetest.Must(t, s.Send(t.Context(), []byte("completed")))
	_, err = s.Recv(t.Context()) // the listener has checked the data
	enginetest.Must(t, err)
}

// listening exports its memory and checks it after the last notification.
func listening(t *testing.T, s *peer.Session) {
	mem := s.Local("memory")
	half := hostRounds * hostPart
	counter := (half + 7) &^ 7
	clear(mem.Bytes())
	for i := range hostRounds / 2 {
		_, err := s.QP.PostRecv([]ibverbx.RecvWR{{WRID: uint64(i)}})
		enginetest.Must(t, err)
	}
	message := ibverbx.RecvWR{WRID: hostRounds}
	message.SetSGE(mem.SGE(uint64(half+4096), 4096))
	_, err := s.QP.PostRecv([]ibverbx.RecvWR{message})
	enginetest.Must(t, err)
	enginetest.Must(t, s.Send(t.Context(), []byte("go")))
	wcs := take(t, s.CQ, hostRounds/2+1)
	want := make([]byte, half)
	enginetest.Fill(want, 1)
	got := mem.Bytes()
	if !bytes.Equal(got[:half], want) || !bytes.Equal(got[half+4096:half+4096+3000], want[:3000]) {
		t.Fatal("the bytes differ, want those that the dialer has written and sent")
	}
	if n := binary.NativeEndian.Uint64(got[counter:]); n != 5 {
		t.Fatalf("the counter is %d, want 5", n)
	}
	if last := wcs[len(wcs)-1]; last.WRID != hostRounds || last.ByteLen != 3000 {
		t.Fatalf("the last completion is %+v, want that of the message of 3000 bytes", last)
	}
	fmt.Printf("bytes are the same: %d\n", half)
	enginetest.Must(t, s.Send(t.Context(), []byte("done")))
	_, err = s.Recv(t.Context()) // the dialer's requests have completed: an acknowledgement may be lost
	enginetest.Must(t, err)
}
