package measure

import (
	"errors"

	"ibverbx/peer"
)

// Impair describes the impairments of a rail's packets by software NICs.
type Impair = peer.Impair

// impairRules refuse invalid impairments. Clients send them to servers.
func (c *Config) impairRules() []rule {
	f := peer.Fabric{RailCount: c.Rails, Impair: c.Impair}
	var wrong *peer.FabricError
	if !errors.As(f.CheckFabric(), &wrong) {
		return nil
	}
	return []rule{{true, "impair", nil, "", wrong.Problem}}
}
