package measure

import "fmt"

// FormatSize formats n in the largest unit that divides it: 8 B, 64 KiB, 16 MiB.
func FormatSize(n int) string {
	unit := 0
	for n != 0 && n&1023 == 0 && unit < 3 {
		n, unit = n>>10, unit+1
	}
	return fmt.Sprintf("%d %s", n, [...]string{"B", "KiB", "MiB", "GiB"}[unit])
}
