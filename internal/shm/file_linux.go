package shm

import (
	"fmt"
	"math"

	"golang.org/x/sys/unix"
)

// sealSize prevents a file from changing its size. An access beyond its end would fault.
const sealSize = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW

// Create maps a new file of size bytes, whose size is fixed. With readOnly set, holders of the descriptor
// can only read the file: b is its only writable mapping.
func Create(size int, readOnly bool) (b []byte, fd int, err error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	if fd, err = unix.MemfdCreate("ibverbx", flags|unix.MFD_NOEXEC_SEAL); err != nil {
		if fd, err = unix.MemfdCreate("ibverbx", flags); err != nil { // Linux before 6.3
			return nil, -1, fmt.Errorf("memfd_create: %w", err)
		}
	}
	if err = unix.Ftruncate(fd, int64(size)); err == nil {
		b, err = unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	seals := sealSize
	if readOnly {
		seals |= unix.F_SEAL_FUTURE_WRITE | unix.F_SEAL_SEAL
	}
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
	}
	if err != nil {
		Unmap(b)
		Close(fd)
		return nil, -1, fmt.Errorf("create %d bytes of shared memory: %w", size, err)
	}
	return b, fd, nil
}

// Share prepares a local file for the peer, and reports whether the peer can map it with the requested
// access. A file shared without write access is sealed against later writable mappings.
func Share(fd int, write bool) bool {
	if !write {
		_, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_FUTURE_WRITE)
		return err == nil
	}
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	return err == nil && seals&unix.F_SEAL_FUTURE_WRITE == 0
}

// Map maps a file of the peer and closes its descriptor. It accepts only ordinary shared memory of
// at least this size, because the peer could make accesses to other files fault.
func Map(fd int, size uint64, write bool) ([]byte, error) {
	defer Close(fd)
	var fs unix.Statfs_t
	var st unix.Stat_t
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err == nil {
		err = unix.Fstatfs(fd, &fs)
	}
	if err == nil {
		err = unix.Fstat(fd, &st)
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("the peer's descriptor is not shared memory: %w", err)
	case fs.Type != unix.TMPFS_MAGIC:
		return nil, fmt.Errorf("the peer's descriptor is not shared memory: its file system has type %#x", fs.Type)
	case seals&sealSize != sealSize:
		return nil, fmt.Errorf("the peer can change the size of its memory (seals %#x)", seals)
	case st.Size < 0 || uint64(st.Size) < size || size == 0 || size > math.MaxInt:
		return nil, fmt.Errorf("the peer's memory has %d bytes, but it announced %d", st.Size, size)
	}
	prot := unix.PROT_READ
	if write {
		prot |= unix.PROT_WRITE
	}
	b, err := unix.Mmap(fd, 0, int(size), prot, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes of the peer's memory: %w", size, err)
	}
	return b, nil
}

// Unmap removes a mapping of Create or Map.
func Unmap(b []byte) {
	if b != nil {
		_ = unix.Munmap(b) // b was returned by mmap
	}
}

// Close closes a descriptor unless it is negative.
func Close(fd int) {
	if fd >= 0 {
		_ = unix.Close(fd) // a memfd does not need to be written back
	}
}
