// Files that a kernel with RDMA would have. Programs that look for devices there, as UCX does, must find those of the library. It says
// what is in them (ibx_path); everything else is left to libc.
#define _GNU_SOURCE
#include "preload.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { most = 256 }; // bytes of a file

// contents asks the library for the contents of a file. It returns their length, or -1 if the file is none of the library's.
static int contents(const char *path, char *to)
{
	static const char *const roots[] = {"/dev/infiniband/", "/sys/class/infiniband/"};
	if (!path || (strncmp(path, roots[0], strlen(roots[0])) && strncmp(path, roots[1], strlen(roots[1]))))
		return -1;
	int (*ask)(const char *, char *, size_t) = (int (*)(const char *, char *, size_t))dlsym(RTLD_DEFAULT, "ibx_path");
	return ask ? ask(path, to, most) : -1;
}

// described fills in what stat reports of a file of the library.
static int described(const char *path, struct stat *to)
{
	char text[most];
	int n = contents(path, text);
	if (n < 0)
		return 0;
	*to = (struct stat){.st_mode = n ? S_IFREG | 0444 : S_IFCHR | 0666, .st_size = n, .st_nlink = 1};
	return 1;
}

_Static_assert(sizeof(struct stat) == sizeof(struct stat64), "64-bit systems have one struct stat");

// STAT defines a function that describes a file by its path alone.
#define STAT(name, type) \
	int name(const char *restrict path, struct type *restrict to) \
	{ \
		return described(path, (struct stat *)to) ? 0 : next(int(const char *, struct type *), #name)(path, to); \
	}
STAT(stat, stat)
STAT(stat64, stat64)
STAT(lstat, stat)
STAT(lstat64, stat64)

// FSTATAT defines one that may begin at a directory. The paths of the library do not.
#define FSTATAT(name, type) \
	int name(int at, const char *restrict path, struct type *restrict to, int flags) \
	{ \
		return described(path, (struct stat *)to) ? 0 : next(int(int, const char *, struct type *, int), #name)(at, path, to, flags); \
	}
FSTATAT(fstatat, stat)
FSTATAT(fstatat64, stat64)

// XSTAT defines one that programs call which were built for glibc before 2.33.
#define XSTAT(name, type) \
	int name(int version, const char *path, struct type *to) \
	{ \
		return described(path, (struct stat *)to) ? 0 : next(int(int, const char *, struct type *), #name)(version, path, to); \
	}
int __xstat(int version, const char *path, struct stat *to);
int __xstat64(int version, const char *path, struct stat64 *to);
int __lxstat(int version, const char *path, struct stat *to);
int __lxstat64(int version, const char *path, struct stat64 *to);
XSTAT(__xstat, stat)
XSTAT(__xstat64, stat64)
XSTAT(__lxstat, stat)
XSTAT(__lxstat64, stat64)

// allowed returns what access says of a file of the library, -2 if it is none.
static int allowed(const char *path, int mode)
{
	char text[most];
	int n = contents(path, text);
	if (n < 0)
		return -2;
	if (mode & (n ? W_OK | X_OK : X_OK)) {
		errno = EACCES;
		return -1;
	}
	return 0;
}

int access(const char *path, int mode)
{
	int n = allowed(path, mode);
	return n != -2 ? n : next(int(const char *, int), "access")(path, mode);
}

int faccessat(int at, const char *path, int mode, int flags)
{
	int n = allowed(path, mode);
	return n != -2 ? n : next(int(int, const char *, int, int), "faccessat")(at, path, mode, flags);
}

// opened returns a descriptor of a file of the library, -1 and errno, or -2 if it is none.
static int opened(const char *path, int flags)
{
	char text[most];
	int n = contents(path, text);
	if (n < 0)
		return -2;
	if (n == 0 && !strcmp(path, ibx_cm_path))
		return cm_opened(flags);
	if (n == 0 || (flags & O_ACCMODE) != O_RDONLY) {
		errno = n ? EACCES : ENXIO; // there is no kernel behind a device
		return -1;
	}
	int fd = memfd_create("ibverbx", flags & O_CLOEXEC ? MFD_CLOEXEC : 0);
	if (fd >= 0 && (write(fd, text, (size_t)n) != n || lseek(fd, 0, SEEK_SET))) {
		close(fd);
		errno = EIO;
		return -1;
	}
	return fd;
}

// mode_of is the mode in the arguments behind flags. Only some flags come with one.
#define mode_of(flags) \
	({ \
		mode_t mode = 0; \
		if ((flags) & (O_CREAT | __O_TMPFILE)) { \
			va_list rest; \
			va_start(rest, flags); \
			mode = va_arg(rest, mode_t); \
			va_end(rest); \
		} \
		mode; \
	})

#define OPEN(name) \
	int name(const char *path, int flags, ...) \
	{ \
		mode_t mode = mode_of(flags); \
		int fd = opened(path, flags); \
		return fd != -2 ? fd : next(int(const char *, int, ...), #name)(path, flags, mode); \
	}
OPEN(open)
OPEN(open64)

#define OPENAT(name) \
	int name(int at, const char *path, int flags, ...) \
	{ \
		mode_t mode = mode_of(flags); \
		int fd = opened(path, flags); \
		return fd != -2 ? fd : next(int(int, const char *, int, ...), #name)(at, path, flags, mode); \
	}
OPENAT(openat)
OPENAT(openat64)

// OPEN_2 defines what FORTIFY_SOURCE makes of open and open64 without a mode.
#define OPEN_2(name) \
	int name(const char *path, int flags) \
	{ \
		int fd = opened(path, flags); \
		return fd != -2 ? fd : next(int(const char *, int), #name)(path, flags); \
	}
int __open_2(const char *path, int flags);
int __open64_2(const char *path, int flags);
OPEN_2(__open_2)
OPEN_2(__open64_2)

#define FOPEN(name) \
	FILE *name(const char *restrict path, const char *restrict mode) \
	{ \
		int fd = opened(path, (strpbrk(mode, "wa+") ? O_RDWR : O_RDONLY) | (strchr(mode, 'e') ? O_CLOEXEC : 0)); \
		if (fd == -2) \
			return next(FILE *(const char *, const char *), #name)(path, mode); \
		FILE *f = fd < 0 ? NULL : fdopen(fd, mode); \
		if (fd >= 0 && !f) \
			close(fd); \
		return f; \
	}
FOPEN(fopen)
FOPEN(fopen64)
