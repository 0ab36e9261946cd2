package ibverbx

// ControlRoundTrip decodes a control message and encodes it again, for the fuzzer.
func ControlRoundTrip(b []byte) ([]byte, error) {
	m, err := decodeControl(b)
	if err != nil {
		return nil, err
	}
	out := make([]byte, MaxControl)
	n, err := m.encode(out)
	return out[:n], err
}

// PolicyInUse is the policy that a VirtualQP follows.
func PolicyInUse(q *VirtualQP) Policy { return q.setup.cfg.Policy }
