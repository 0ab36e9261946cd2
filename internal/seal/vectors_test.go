package seal

import (
	"bytes"
	"encoding/hex"
	"os"
	"regexp"
	"testing"
)

// TestVectors compares the values in docs/wire.md with this package's results.
func TestVectors(t *testing.T) {
	page, err := os.ReadFile("../../docs/wire.md")
	if err != nil {
		t.Fatal(err)
	}
	said := make(map[string][]byte)
	for _, m := range regexp.MustCompile(`(?m)^([a-z][a-z0-9, ]*[a-z0-9]) += ([0-9a-f]+)$`).FindAllSubmatch(page, -1) {
		if said[string(m[1])], err = hex.DecodeString(string(m[2])); err != nil {
			t.Fatalf("%s: %v", m[1], err)
		}
	}
	check := func(name string, want []byte) {
		t.Helper()
		if got := said[name]; !bytes.Equal(got, want) {
			t.Errorf("docs/wire.md says %s = %x, want %x", name, got, want)
		}
	}
	var dialer, listener Greeting
	copy(dialer[:], said["greeting dialer"])
	copy(listener[:], said["greeting listener"])
	s, err := NewSession(said["secret"], true)
	if err != nil {
		t.Fatal(err)
	}
	check("root", s.prk)
	first, err := s.direction(labelDialer, &dialer, &listener)
	if err != nil {
		t.Fatal(err)
	}
	check("from the dialer", first)
	back, err := s.direction(labelListener, &listener, &dialer)
	if err != nil {
		t.Fatal(err)
	}
	check("from the listener", back)
	key := func(secret []byte) []byte {
		k, err := expand(secret, labelKey, keyLen)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	a := associate(t, said["secret"], true, dialer, listener)
	carried, socket := string(said["carried"]), said["socket"][0]
	check("key 0", key(a.out.key.secret))
	check("salt 0", a.out.key.salt[:])
	one := sealed(a, socket, carried)
	check("packet 0", one)
	a.out.rekey()
	check("next secret", a.out.key.secret)
	check("key 1", key(a.out.key.secret))
	check("salt 1", a.out.key.salt[:])
	two := sealed(a, socket, carried)
	check("packet 1, epoch 1", two)
	l := associate(t, said["secret"], false, listener, dialer)
	for _, b := range [][]byte{one, two} {
		if plain, v := l.Open(b); v != Opened || string(plain) != carried {
			t.Errorf("Open = %x, %d, want %x, %d", plain, v, carried, Opened)
		}
	}
}
