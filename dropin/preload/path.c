// Files that a kernel with RDMA would have. Programs that look for devices there, as UCX does, must find those of the library. It says
// what is in them (ibx_path); everything else is left to libc.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

// next returns the function of libc behind one of this file.
#define next(type, name) \
	({ \
		static __typeof__(type) *found; \
		if (!found) \
			found = (__typeof__(found))dlsym(RTLD_NEXT, name); \
		found; \
	})

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

int stat(const char *restrict path, struct stat *restrict to)
{
	return described(path, to) ? 0 : next(int(const char *, struct stat *), "stat")(path, to);
}

int stat64(const char *restrict path, struct stat64 *restrict to)
{
	_Static_assert(sizeof(struct stat) == sizeof(struct stat64), "64-bit systems have one struct stat");
	return described(path, (struct stat *)to) ? 0 : next(int(const char *, struct stat64 *), "stat64")(path, to);
}

int access(const char *path, int mode)
{
	char text[most];
	int n = contents(path, text);
	if (n < 0)
		return next(int(const char *, int), "access")(path, mode);
	if (mode & (n ? W_OK | X_OK : X_OK)) {
		errno = EACCES;
		return -1;
	}
	return 0;
}

// opened returns a descriptor of a file of the library, -1 and errno, or -2 if it is none.
static int opened(const char *path, int flags)
{
	char text[most];
	int n = contents(path, text);
	if (n < 0)
		return -2;
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

// OPEN defines open or open64. Only some flags come with a mode.
#define OPEN(name) \
	int name(const char *path, int flags, ...) \
	{ \
		mode_t mode = 0; \
		if (flags & (O_CREAT | __O_TMPFILE)) { \
			va_list rest; \
			va_start(rest, flags); \
			mode = va_arg(rest, mode_t); \
			va_end(rest); \
		} \
		int fd = opened(path, flags); \
		return fd != -2 ? fd : next(int(const char *, int, ...), #name)(path, flags, mode); \
	}
OPEN(open)
OPEN(open64)

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
