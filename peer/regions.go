package peer

import (
	"encoding/json"
	"fmt"
	"math"
	"unicode/utf8"

	"ibverbx"
	"ibverbx/bootstrap"
	"ibverbx/verbs"
)

// regionList is how memory is described to the peer.
type regionList struct {
	Regions []regionEntry `json:"regions"`
}

type regionEntry struct {
	Name string `json:"name"`
	ibverbx.RemoteRegion
}

// encodeRegions describes this side's memory.
func encodeRegions(cfgs []RegionConfig, local []*ibverbx.Region) ([]byte, error) {
	list := regionList{Regions: []regionEntry{}}
	for i, g := range local {
		list.Regions = append(list.Regions, regionEntry{Name: cfgs[i].Name, RemoteRegion: *g.Remote()})
	}
	return json.Marshal(list)
}

// decodeRegions reads the description of a peer's memory, which has as many rails.
func decodeRegions(b []byte, rails int) ([]RemoteRegion, error) {
	var list regionList
	if err := decodeExact(b, bootstrap.MaxMessage, &list); err != nil {
		return nil, fmt.Errorf("decode regions: %w", err)
	}
	if list.Regions == nil || len(list.Regions) > maxRegions {
		return nil, fmt.Errorf("decode regions: %w", verbs.Invalidf("%d regions: want at most %d", len(list.Regions), maxRegions))
	}
	regions := make([]RemoteRegion, 0, len(list.Regions))
	for i, r := range list.Regions {
		switch {
		case len(r.Name) > maxRegionName || !utf8.ValidString(r.Name):
			return nil, fmt.Errorf("decode regions: region %d: %w", i, verbs.Invalidf("a name of %d bytes", len(r.Name)))
		case len(r.RKeys) != rails:
			return nil, fmt.Errorf("decode regions: region %d: %w", i, verbs.Invalidf("%d keys for %d rails", len(r.RKeys), rails))
		case r.Length == 0 || r.Addr > math.MaxUint64-r.Length:
			return nil, fmt.Errorf("decode regions: region %d: %w", i, verbs.Invalidf("%d bytes at %#x", r.Length, r.Addr))
		}
		regions = append(regions, RemoteRegion(r))
	}
	return regions, nil
}
