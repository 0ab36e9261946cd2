//go:build !unix

package transfer

import "errors"

// mapFile maps a file read-only, which this system does not do here.
func mapFile(path string) (b []byte, unmap func() error, err error) {
	_ = path
	return nil, nil, errors.ErrUnsupported
}
