package peer

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"unicode/utf8"

	"ibverbx"
	"ibverbx/bootstrap"
	"ibverbx/internal/strictjson"
	"ibverbx/verbs"
)

// regionList describes memory to the peer.
type regionList struct {
	Regions []regionEntry `json:"regions"`
}

type regionEntry struct {
	Name string `json:"name"`
	ibverbx.RemoteRegion
}

// forPeer returns the Config with the regions exposed to a peer.
func (c *Config) forPeer(p bootstrap.Peer) *Config {
	visible := *c
	visible.Regions = slices.DeleteFunc(slices.Clone(c.Regions), func(r RegionConfig) bool { return r.For != nil && !r.For(p) })
	return &visible
}

// encodeRegions encodes the description of local memory.
func encodeRegions(cfgs []RegionConfig, local map[string]*ibverbx.Region) ([]byte, error) {
	list := regionList{Regions: []regionEntry{}}
	for i := range cfgs {
		name := cfgs[i].Name
		list.Regions = append(list.Regions, regionEntry{Name: name, RemoteRegion: *local[name].Remote()})
	}
	return json.Marshal(list)
}

// decodeRegions decodes the memory description of a peer with the given number of rails. The result is keyed by name.
func decodeRegions(b []byte, rails int) (map[string]*ibverbx.RemoteRegion, error) {
	var list regionList
	if err := strictjson.DecodeKnown(b, bootstrap.MaxMessage, &list); err != nil {
		return nil, fmt.Errorf("decode regions: %w: %w", verbs.ErrInvalid, err)
	}
	if list.Regions == nil || len(list.Regions) > maxRegions {
		return nil, fmt.Errorf("decode regions: %w", verbs.Invalidf("%d regions: want at most %d", len(list.Regions), maxRegions))
	}
	regions := make(map[string]*ibverbx.RemoteRegion, len(list.Regions))
	for i := range list.Regions {
		r := &list.Regions[i]
		var err error
		switch {
		case len(r.Name) > maxRegionName || !utf8.ValidString(r.Name):
			err = verbs.Invalidf("its name has %d bytes", len(r.Name))
		case regions[r.Name] != nil:
			err = verbs.Invalidf("another region is also named %q", r.Name)
		case len(r.RKeys) != rails:
			err = verbs.Invalidf("%d keys for %d rails", len(r.RKeys), rails)
		case r.Length == 0 || r.Addr > math.MaxUint64-r.Length:
			err = verbs.Invalidf("%d bytes at %#x", r.Length, r.Addr)
		}
		if err != nil {
			return nil, fmt.Errorf("decode regions: region %d: %w", i, err)
		}
		regions[r.Name] = &r.RemoteRegion
	}
	return regions, nil
}
