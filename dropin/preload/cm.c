// The descriptors of /dev/infiniband/rdma_cm. The library gives a program an event descriptor in place of the file; this file passes what
// the program writes there to the library. All other descriptors cost one look-up in a table. write, close and dup2 stay async-signal-safe.
#define _GNU_SOURCE
#include "preload.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

// table holds the file of the library behind each descriptor, 0 for none. Only pages with such descriptors use memory.
enum { most_fds = 65536 };
static uint32_t table[most_fds];

// owner is the process that opened the files. A child made by vfork shares the memory of its parent and must not change it. forked is
// set in a child made by fork, which has copies.
static pid_t owner;
static volatile bool forked;

static struct {
	int (*open)(int flags, uint32_t *file);
	ssize_t (*write)(int fd, uint32_t file, const void *command, size_t size);
	void (*close)(uint32_t file);
} library;

// The device and the inode of event descriptors, which share them. They tell an inherited descriptor from a file opened later.
static dev_t event_dev;
static ino_t event_ino;

// The functions behind those of this file, once the constructor has run. dlsym is not async-signal-safe.
static ssize_t (*next_write)(int, const void *, size_t);
static int (*next_close)(int);
static int (*next_dup2)(int, int);
static int (*next_dup3)(int, int, int);
static int (*next_close_range)(unsigned int, unsigned int, int);

__attribute__((constructor)) static void find_next(void)
{
	next_write = next(ssize_t(int, const void *, size_t), "write");
	next_close = next(int(int), "close");
	next_dup2 = next(int(int, int), "dup2");
	next_dup3 = next(int(int, int, int), "dup3");
	next_close_range = next(int(unsigned int, unsigned int, int), "close_range");
}

uint32_t ibx_cm_file(int fd) { return (unsigned int)fd < most_fds ? __atomic_load_n(&table[fd], __ATOMIC_ACQUIRE) : 0; }

static void child(void) { forked = true; }

static void find_library(void)
{
	library.open = (__typeof__(library.open))dlsym(RTLD_DEFAULT, "ibx_cm_open");
	library.write = (__typeof__(library.write))dlsym(RTLD_DEFAULT, "ibx_cm_write");
	library.close = (__typeof__(library.close))dlsym(RTLD_DEFAULT, "ibx_cm_close");
	owner = getpid();
	pthread_atfork(NULL, NULL, child);
}

int cm_opened(int flags)
{
	static pthread_once_t found = PTHREAD_ONCE_INIT;
	uint32_t file;
	pthread_once(&found, find_library);
	if (forked || !library.open || !library.write || !library.close) {
		errno = ENODEV;
		return -1;
	}
	int fd = library.open(flags, &file);
	if (fd >= most_fds) {
		library.close(file);
		close(fd);
		errno = EMFILE;
		return -1;
	}
	if (fd >= 0) {
		struct stat event;
		if (!syscall(SYS_fstat, fd, &event)) {
			event_dev = event.st_dev;
			event_ino = event.st_ino;
		}
		__atomic_store_n(&table[fd], file, __ATOMIC_RELEASE);
	}
	return fd;
}

// ours reports whether this process has opened the files, and not a parent.
static bool ours(void) { return !forked && getpid() == owner; }

// inherited reports whether a descriptor of a child is still the parent's. The library does not learn what a child made by vfork does.
static bool inherited(int fd)
{
	struct stat now;
	return !syscall(SYS_fstat, fd, &now) && now.st_dev == event_dev && now.st_ino == event_ino;
}

// closed forgets a descriptor that is about to be closed.
static void closed(int fd)
{
	uint32_t file = ibx_cm_file(fd);
	if (file && (forked || ours())) {
		__atomic_store_n(&table[fd], 0, __ATOMIC_RELEASE);
		if (!forked)
			library.close(file);
	}
}

ssize_t write(int fd, const void *buf, size_t n)
{
	uint32_t file = ibx_cm_file(fd);
	if (file && ours())
		return library.write(fd, file, buf, n);
	if (file && inherited(fd)) {
		errno = ENODEV;
		return -1;
	}
	return next_write ? next_write(fd, buf, n) : syscall(SYS_write, fd, buf, n);
}

int close(int fd)
{
	closed(fd);
	return next_close ? next_close(fd) : (int)syscall(SYS_close, fd);
}

// dup2 and dup3 close the target. If they fail, it stays open, but it is an event descriptor without a file of the library.
int dup2(int from, int to)
{
	if (from != to && fcntl(from, F_GETFD) >= 0)
		closed(to);
	return next_dup2 ? next_dup2(from, to) : from == to ? (fcntl(from, F_GETFD) < 0 ? -1 : to) : (int)syscall(SYS_dup3, from, to, 0);
}

int dup3(int from, int to, int flags)
{
	if (from != to && !(flags & ~O_CLOEXEC) && fcntl(from, F_GETFD) >= 0)
		closed(to);
	return next_dup3 ? next_dup3(from, to, flags) : (int)syscall(SYS_dup3, from, to, flags);
}

int close_range(unsigned int first, unsigned int last, int flags)
{
	for (unsigned int fd = first; !(flags & CLOSE_RANGE_CLOEXEC) && fd <= last && fd < most_fds; fd++)
		closed((int)fd);
	return next_close_range ? next_close_range(first, last, flags) : (int)syscall(SYS_close_range, first, last, flags);
}

// described fills in what fstat reports of a descriptor of the library.
static int described(int fd, struct stat *to)
{
	if (!ibx_cm_file(fd))
		return 0;
	*to = (struct stat){.st_mode = S_IFCHR | 0666, .st_nlink = 1};
	return 1;
}

#define FSTAT(name, type) \
	int name(int fd, struct type *to) { return described(fd, (struct stat *)to) ? 0 : next(int(int, struct type *), #name)(fd, to); }
FSTAT(fstat, stat)
FSTAT(fstat64, stat64)

// FXSTAT defines one that programs call which were built for glibc before 2.33.
#define FXSTAT(name, type) \
	int name(int version, int fd, struct type *to) \
	{ \
		return described(fd, (struct stat *)to) ? 0 : next(int(int, int, struct type *), #name)(version, fd, to); \
	}
FXSTAT(__fxstat, stat)
FXSTAT(__fxstat64, stat64)

// socket refuses to ask a kernel with RDMA about its devices: librdmacm would look for the device number of its rdma_cm.
int socket(int domain, int type, int protocol)
{
	if (domain == AF_NETLINK && protocol == NETLINK_RDMA) {
		errno = EPROTONOSUPPORT;
		return -1;
	}
	return next(int(int, int, int), "socket")(domain, type, protocol);
}
