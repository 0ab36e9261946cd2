package seal

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"fmt"
)

// key is the key of one epoch of one direction.
type key struct {
	aead cipher.AEAD
	salt [saltLen]byte
	// secret is the input for deriving the key and the next secret.
	secret []byte
	// nonce is a buffer that avoids an allocation per packet.
	nonce [saltLen]byte
}

func newKey(secret []byte) (*key, error) {
	k := &key{secret: secret}
	b, err := expand(secret, labelKey, keyLen)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(b)
	clear(b)
	if err == nil {
		k.aead, err = cipher.NewGCM(block)
	}
	if err != nil {
		return nil, fmt.Errorf("seal: %w", err)
	}
	if b, err = expand(secret, labelSalt, saltLen); err != nil {
		return nil, err
	}
	copy(k.salt[:], b)
	return k, nil
}

// next returns the key of the next epoch. It does not reveal the previous key.
func (k *key) next() (*key, error) {
	secret, err := expand(k.secret, labelNext, secretLen)
	if err != nil {
		return nil, err
	}
	return newKey(secret)
}

// nonceOf returns the nonce of a packet: the salt, with the counter XORed into its last eight
// bytes.
func (k *key) nonceOf(counter uint64) []byte {
	copy(k.nonce[:], k.salt[:])
	binary.BigEndian.PutUint64(k.nonce[4:], binary.BigEndian.Uint64(k.salt[4:])^counter)
	return k.nonce[:]
}
