package doctor

import (
	"bytes"
	"encoding/binary"
)

// The dynamic loader's cache as glibc writes it since 2.2: a header, a table of entries, and
// strings. Numbers are in the machine's byte order, which is little endian on all supported
// machines. An older format may precede it.
const (
	cacheMagic     = "glibc-ld.so.cache1.1"
	cacheHeader    = 48 // magic, number of libraries, length of strings, flags, extensions
	cacheEntry     = 24 // flags, key, value, OS version, hardware capabilities
	cacheCountAt   = 20
	cacheKeyAt     = 4
	cacheValueAt   = 8
	cacheMaxString = 4096 // PATH_MAX
)

// cachedPaths returns a library's paths in a loader cache, in cache order. It returns nil for a
// truncated or corrupted cache.
func cachedPaths(cache []byte, soname string) []string {
	start := bytes.Index(cache, []byte(cacheMagic))
	if start < 0 || len(cache)-start < cacheHeader {
		return nil
	}
	cache = cache[start:]
	n := int(binary.LittleEndian.Uint32(cache[cacheCountAt:]))
	if n > (len(cache)-cacheHeader)/cacheEntry {
		return nil
	}
	var paths []string
	for i := range n {
		entry := cache[cacheHeader+i*cacheEntry:]
		if cacheString(cache, binary.LittleEndian.Uint32(entry[cacheKeyAt:])) != soname {
			continue
		}
		if p := cacheString(cache, binary.LittleEndian.Uint32(entry[cacheValueAt:])); p != "" && p[0] == '/' {
			paths = append(paths, p)
		}
	}
	return paths
}

// cacheString returns the string at an offset, "" if it is invalid.
func cacheString(cache []byte, offset uint32) string {
	if uint64(offset) >= uint64(len(cache)) {
		return ""
	}
	s := cache[offset:]
	s = s[:min(len(s), cacheMaxString)]
	end := bytes.IndexByte(s, 0)
	if end < 0 {
		return ""
	}
	return string(s[:end])
}
