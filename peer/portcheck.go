package peer

import (
	"errors"
	"fmt"
	"strings"

	"ibverbx"
	"ibverbx/verbs"
)

// checkPorts returns an error if a port is down or its device has failed. With failover, one active port suffices: the other lanes enter
// service later.
func checkPorts(rails []ibverbx.RailConfig, failover bool) error {
	var down []string
	var failed []error
	for i := range rails {
		ctx, port := rails[i].Context, max(int(rails[i].Port), 1)
		p, err := ctx.QueryPort(port)
		if errors.Is(err, verbs.ErrDeviceFatal) {
			down, failed = append(down, fmt.Sprintf("rail %d: %v", i, err)), append(failed, err)
			continue
		}
		if err != nil {
			return fmt.Errorf("rail %d: %w", i, err)
		}
		if p.State != verbs.PortActive {
			down = append(down, fmt.Sprintf("rail %d: port %d of %s is %s, not %s", i, port, ctx.Device().Name(), p.State, verbs.PortActive))
		}
	}
	switch {
	case len(down) == 0 || failover && len(down) < len(rails):
		return nil
	case len(failed) > 0:
		return fmt.Errorf("no port is active, or one is not and failover is off: %s: %w", strings.Join(down, "; "), failed[0])
	case failover:
		return verbs.Invalidf("no port is active: %s", strings.Join(down, "; "))
	}
	return verbs.Invalidf("without failover all ports must be active: %s", strings.Join(down, "; "))
}
