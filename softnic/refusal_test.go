package softnic

import (
	"errors"
	"testing"

	"ibverbx/verbs"
)

// TestZeroArguments: nil pointers, zero values and unknown handles return errors. They never panic or leave
// the link locked.
func TestZeroArguments(t *testing.T) {
	s := newNICRig(t, NewMemoryLink(nil), 4, Config{})
	fault, err := NewFaultLink(nil)
	check(t, err)
	ud := s.qp(verbs.UD, 4)
	check(t, ud.Connect(verbs.Endpoint{}))
	ah, err := s.pd.CreateAH(verbs.AHAttr{DGID: s.nic.gids[1].GID, SGIDIndex: 1})
	check(t, err)
	datagram := func(h verbs.AHHandle) error {
		_, err := ud.PostSend([]verbs.SendWR{{Opcode: verbs.OpSend, AH: h, RemoteQPN: ud.num, RemoteQKey: verbs.DefaultQKey}})
		return err
	}
	for name, call := range map[string]func() error{
		"New(nil)":             func() error { _, err := New(nil, Config{}); return err },
		"New(nil memory link)": func() error { _, err := New((*MemoryLink)(nil), Config{}); return err },
		"New(nil fault link)":  func() error { _, err := New((*FaultLink)(nil), Config{}); return err },
		"New(&MemoryLink{})":   func() error { _, err := New(&MemoryLink{}, Config{}); return err },
		"New(&FaultLink{})":    func() error { _, err := New(&FaultLink{}, Config{}); return err },
		"CreateQP without CQs": func() error {
			_, err := s.pd.CreateQP(verbs.QPConfig{Type: verbs.RC})
			return err
		},
		"CreateQP with nil *cq": func() error {
			_, err := s.pd.CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: (*cq)(nil), RecvCQ: s.cq})
			return err
		},
		"CreateQP with nil *srq": func() error {
			_, err := s.pd.CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: s.cq, RecvCQ: s.cq, SRQ: (*srq)(nil)})
			return err
		},
		"RegisterMemory(nil)":       func() error { _, err := s.pd.RegisterMemory(nil, verbs.AccessAll); return err },
		"RegisterMemory(&Memory{})": func() error { _, err := s.pd.RegisterMemory(&verbs.Memory{}, verbs.AccessAll); return err },
		"Impair(nil, nil)":          func() error { return fault.Impair(nil, nil, Impairment{}) },
		"Impair(nic, nil)":          func() error { return fault.Impair(s.nic, nil, Impairment{}) },
		"no AH":                     func() error { return datagram(0) },
		"AH with high bits":         func() error { return datagram(ah.Handle() | 1<<40) },
		"AH with bit 32":            func() error { return datagram(ah.Handle() | 1<<32) },
		"AH never given out":        func() error { return datagram(ah.Handle() + 1) },
		"CreateAH without address":  func() error { _, err := s.pd.CreateAH(verbs.AHAttr{}); return err },
	} {
		t.Run(name, func(t *testing.T) {
			if err := call(); !errors.Is(err, verbs.ErrInvalid) {
				t.Errorf("error = %v, want one that is ErrInvalid", err)
			}
			if !s.nic.core.mu.TryLock() {
				t.Fatal("the lock of the link is held")
			}
			s.nic.core.mu.Unlock()
		})
	}
	if err := datagram(ah.Handle()); err != nil {
		t.Errorf("a good AH is refused: %v", err)
	}
}

// TestZeroMemory: a zero Memory is empty and can be freed.
func TestZeroMemory(t *testing.T) {
	var m verbs.Memory
	if err := m.Free(); err != nil {
		t.Errorf("Free of a zero Memory = %v", err)
	}
	if m.Len() != 0 {
		t.Errorf("a zero Memory has %d bytes", m.Len())
	}
}
