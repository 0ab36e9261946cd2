//go:build !unix

package transfer

import "errors"

// mapFile returns errors.ErrUnsupported on this platform.
func mapFile(path string) (b []byte, unmap func() error, err error) {
	_ = path
	return nil, nil, errors.ErrUnsupported
}
