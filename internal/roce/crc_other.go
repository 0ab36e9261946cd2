//go:build !amd64

package roce

// folds is false: this architecture only uses hash/crc32 and short.
const (
	folds = false
	wide  = false
)

// narrowMin is unused here.
const narrowMin = 0

func foldSum(uint32, []byte, bool) uint32 { return 0 }

func foldCopy(uint32, []byte, []byte, bool) uint32 { return 0 }
