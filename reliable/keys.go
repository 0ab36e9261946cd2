package reliable

// keys finds the region of a key: a table with open addressing, at most half full. A slot without
// a region is free.
type keys struct {
	slots []keySlot
	used  int
}

type keySlot struct {
	key    uint32
	region *region
}

func (k *keys) home(key uint32) int {
	return int(key*0x9e3779b1>>8) & (len(k.slots) - 1)
}

// find returns the region of a key, or nil.
func (k *keys) find(key uint32) *region {
	if len(k.slots) == 0 {
		return nil
	}
	for i := k.home(key); k.slots[i].region != nil; i = (i + 1) & (len(k.slots) - 1) {
		if k.slots[i].key == key {
			return k.slots[i].region
		}
	}
	return nil
}

// add adds a key that is not there.
func (k *keys) add(key uint32, r *region) {
	if 2*(k.used+1) > len(k.slots) {
		old := k.slots
		k.slots = make([]keySlot, max(16, 2*len(old)))
		for _, s := range old {
			if s.region != nil {
				k.put(s)
			}
		}
	}
	k.put(keySlot{key, r})
	k.used++
}

func (k *keys) put(s keySlot) {
	i := k.home(s.key)
	for k.slots[i].region != nil {
		i = (i + 1) & (len(k.slots) - 1)
	}
	k.slots[i] = s
}

// remove takes the key of a region out and moves up what stands behind it.
func (k *keys) remove(key uint32, r *region) {
	if k.find(key) != r || r == nil {
		return
	}
	mask := len(k.slots) - 1
	i := k.home(key)
	for k.slots[i].key != key || k.slots[i].region == nil {
		i = (i + 1) & mask
	}
	k.slots[i] = keySlot{}
	k.used--
	for i = (i + 1) & mask; k.slots[i].region != nil; i = (i + 1) & mask {
		s := k.slots[i]
		k.slots[i] = keySlot{}
		k.put(s)
	}
}
