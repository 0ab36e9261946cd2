package connect_test

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/verbs"
)

// TestDecodeCard (G13, G14): an invalid card is refused with a reason.
func TestDecodeCard(t *testing.T) {
	c, err := ibverbx.DecodeCard([]byte(enginetest.GoodCard))
	if err != nil || len(c.Lanes) != 2 || c.Lanes[1].Rail != 1 {
		t.Fatalf("DecodeCard of a good card = %+v, %v", c, err)
	}
	for name, change := range map[string][2]string{
		"version":         {`"version":2`, `"version":1`},
		"no rails":        {`"rails":2`, `"rails":0`},
		"too many rails":  {`"rails":2`, `"rails":9`},
		"rail of a lane":  {`"rail":1`, `"rail":2`},
		"negative rail":   {`"rail":1`, `"rail":-1`},
		"QPN 0":           {`"qpn":17,"psn":5`, `"qpn":0,"psn":5`},
		"QPN too large":   {`"qpn":17,"psn":5`, `"qpn":16777216,"psn":5`},
		"QPN a string":    {`"qpn":17,"psn":5`, `"qpn":"17","psn":5`},
		"QPN negative":    {`"qpn":17,"psn":5`, `"qpn":-1,"psn":5`},
		"QPN of 33 bits":  {`"qpn":17,"psn":5`, `"qpn":4294967313,"psn":5`},
		"QPN a fraction":  {`"qpn":17,"psn":5`, `"qpn":17.5,"psn":5`},
		"QPN null":        {`"qpn":17,"psn":5`, `"qpn":null,"psn":5`},
		"QPN a list":      {`"qpn":17,"psn":5`, `"qpn":[17],"psn":5`},
		"PSN too large":   {`"psn":5`, `"psn":16777216`},
		"MTU":             {`"mtu":5,"max_rd_atomic":16,"max_dest_rd_atomic":16},`, `"mtu":9,"max_rd_atomic":16,"max_dest_rd_atomic":16},`},
		"max_msg_sz 0":    {`"max_msg_sz":1048576`, `"max_msg_sz":0`},
		"incarnation 0":   {`"incarnation":77`, `"incarnation":0`},
		"incarnation":     {`"incarnation":77`, `"incarnation":9007199254740992`},
		"atomic rail":     {`"atomic_rail":1`, `"atomic_rail":0`},
		"message lane":    {`"message_lane":1`, `"message_lane":0`},
		"no message lane": {`"message_lane":1`, `"message_lane":-1`},
		"notify lane":     {`"notify_lane":-1`, `"notify_lane":2`},
		"send depth":      {`"send_depth":256`, `"send_depth":0`},
		"limits":          {`"recv_depth":128`, `"recv_depth":-1`},
		"field twice":     {`"rails":2`, `"rails":2,"rails":2`},
		"field of a lane": {`"psn":5`, `"psn":5,"psn":6`},
		"other case":      {`"rails":2`, `"rails":2,"RAILS":2`},
		"GID":             {`"::ffff:10.0.0.2"`, `"nowhere"`},
		"GID of numbers":  {`"::ffff:10.0.0.2"`, `[1,2]`},
		"no scheme":       {`"scheme":"tally",`, ``},
		"unknown scheme":  {`"scheme":"tally"`, `"scheme":"chatter"`},
		"trailing text":   {`]}`, `]} true`},
		"no lanes":        {enginetest.GoodCard[strings.Index(enginetest.GoodCard, "{\"rail\""):], "]}"},
		"not JSON":        {`{"version"`, `{version`},
	} {
		t.Run(name, func(t *testing.T) {
			if !strings.Contains(enginetest.GoodCard, change[0]) {
				t.Fatalf("%q is not in the card", change[0])
			}
			i := strings.LastIndex(enginetest.GoodCard, change[0])
			text := enginetest.GoodCard[:i] + change[1] + enginetest.GoodCard[i+len(change[0]):]
			if c, err := ibverbx.DecodeCard([]byte(text)); !errors.Is(err, verbs.ErrInvalid) {
				t.Errorf("DecodeCard = %+v, %v; want %v", c, err, verbs.ErrInvalid)
			}
		})
	}
	if _, err := ibverbx.DecodeCard(make([]byte, 2<<20)); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("DecodeCard of 2 MiB = %v, want %v", err, verbs.ErrInvalid)
	}
}

// TestLaterCard: optional fields from a later version are ignored, both in a card and in its lanes.
func TestLaterCard(t *testing.T) {
	want, err := ibverbx.DecodeCard([]byte(enginetest.GoodCard))
	enginetest.Must(t, err)
	later := strings.ReplaceAll(strings.Replace(enginetest.GoodCard, `"rails":2`, `"rails":2,"colour":{"red":[1]}`, 1), `{"rail":`, `{"colour":"red","rail":`)
	if got, err := ibverbx.DecodeCard([]byte(later)); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("DecodeCard(%s) = %+v, %v; want %+v", later, got, err, want)
	}
}

// TestConnectRefusals (G14): Connect refuses a mismatched card, and the VirtualQP can still be connected
// afterwards.
func TestConnectRefusals(t *testing.T) {
	a := enginetest.NewHost(t, enginetest.MemoryLinks(1), ibverbx.Config{Lanes: 2})
	three := enginetest.NewHost(t, enginetest.MemoryLinks(1), ibverbx.Config{Lanes: 3})
	card, err := three.QP.Card()
	enginetest.Must(t, err)
	if err := a.QP.Connect(card); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("Connect to three lanes = %v, want %v", err, verbs.ErrInvalid)
	}
	own, err := a.QP.Card()
	enginetest.Must(t, err)
	empty := *own
	empty.Lanes = nil
	for _, card := range []*ibverbx.Card{nil, {}, &empty} {
		if err := a.QP.Connect(card); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("Connect(%+v) = %v, want %v", card, err, verbs.ErrInvalid)
		}
	}
	if _, err := a.QP.PostSend([]ibverbx.SendWR{{Opcode: verbs.OpSend}}); !errors.Is(err, verbs.ErrState) {
		t.Errorf("PostSend without a peer = %v, want %v", err, verbs.ErrState)
	}
	broken := *own
	broken.Lanes = append([]ibverbx.CardLane(nil), own.Lanes...)
	broken.Lanes[1].QPN = 0
	if err := a.QP.Connect(&broken); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("Connect to QPN 0 = %v, want %v", err, verbs.ErrInvalid)
	}
	enginetest.Must(t, a.QP.Connect(own)) // to itself: every lane to its own other end
	if err := a.QP.Connect(own); !errors.Is(err, verbs.ErrState) {
		t.Errorf("second Connect = %v, want %v", err, verbs.ErrState)
	}
}

func FuzzDecodeCard(f *testing.F) {
	f.Add([]byte(enginetest.GoodCard))
	f.Add([]byte(`{}`))
	f.Add([]byte(`{"version":2,"rails":1,"lanes":[{"extra":"AAAA"}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := ibverbx.DecodeCard(b)
		if err != nil {
			return
		}
		text, err := c.Encode()
		if err != nil {
			t.Fatalf("a card that was decoded cannot be encoded: %v", err)
		}
		if _, err := ibverbx.DecodeCard(text); err != nil {
			t.Fatalf("a card that was encoded cannot be decoded: %v", err)
		}
	})
}
