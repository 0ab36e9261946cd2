package chunk

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// linkTime sets the modification time of a symbolic link in a directory.
func linkTime(dir *os.File, name string, modified time.Time) error {
	at, err := unix.TimeToTimespec(modified)
	if err != nil {
		return err
	}
	_, err = control(dir, func(fd int) (int64, error) {
		return 0, unix.UtimesNanoAt(fd, name, []unix.Timespec{{Nsec: unix.UTIME_OMIT}, at}, unix.AT_SYMLINK_NOFOLLOW)
	})
	return err
}
