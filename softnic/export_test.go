package softnic

// SetLoose makes the gates of a link open after need calls: 0 opens them at once, and again and again.
func SetLoose(l *MemoryLink, need uint32) { l.mu.need, l.mu.least = need, need }

// NeverLoose keeps the gates of a link shut.
const NeverLoose = neverLoose

// ReachesProcess reports whether the kernel copies between the link's process and the peer.
func ReachesProcess(l *ShmLink) bool { return l.near.process != nil }
