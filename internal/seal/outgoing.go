package seal

import "encoding/binary"

// outgoing is the sending direction of an Association.
type outgoing struct {
	key   *key
	index uint32
	// epoch numbers the keys. Packets carry its low 16 bits.
	epoch uint64
	// counter is the counter of the next packet. It never repeats, even across keys.
	counter uint64
	// first is the counter of the first packet under the present key.
	first uint64
}

func (o *outgoing) init(secret []byte, index uint32) (err error) {
	o.index = index
	o.key, err = newKey(secret)
	return err
}

// rekey switches to the next key.
func (o *outgoing) rekey() {
	k, err := o.key.next()
	if err != nil {
		panic(err) // the lengths of all keys are constants
	}
	clear(o.key.secret)
	o.key, o.first = k, o.counter
	o.epoch++
}

// Seal seals b in place. The caller has written the payload to b[HeaderLen:len(b)-TagLen]. socket
// identifies the sending socket: packets on one socket arrive nearly in order.
func (a *Association) Seal(b []byte, socket uint8) {
	o := &a.out
	if o.counter-o.first >= maxPackets {
		a.rekey()
	}
	binary.BigEndian.PutUint32(b, o.index)
	b[headVersion], b[headSocket] = version, socket
	binary.BigEndian.PutUint16(b[headEpoch:], uint16(o.epoch))
	binary.BigEndian.PutUint64(b[headCounter:], o.counter)
	nonce := o.key.nonceOf(o.counter)
	o.counter++
	o.key.aead.Seal(b[HeaderLen:HeaderLen], nonce, b[HeaderLen:len(b)-TagLen], b[:HeaderLen])
}
