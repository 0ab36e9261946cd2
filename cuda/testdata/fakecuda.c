// A stand-in for libcuda. Memory of the GPU has addresses that no CPU can access. A copy is executed when
// its stream is synchronized, and not earlier: the latest moment that CUDA allows. A kernel copies its blocks
// then, the last one first, because they have no order. An address that is not mapped or not aligned ends the
// use of the GPU, as in CUDA. Every call is counted and can be made to fail. The state is in a file that the test maps too.
//
// The bytes of the GPU's memory are in a file of the process without a name. A handle says where in it, so another process of
// the user opens the file while the process lives (proc(5), /proc/PID/fd). Memory that has been freed reads as zeros there.

#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

// Calls, in the order of fake_test.go.
enum {
	C_INIT, C_VERSION, C_COUNT, C_DEVICE, C_NAME, C_TOTAL, C_ATTRIBUTE, C_PCI, C_RETAIN, C_RELEASE, C_PUSH, C_POP, C_ALLOC,
	C_FREE, C_RANGE, C_POINTER, C_PIN, C_UNPIN, C_COPY, C_STREAM, C_SYNC, C_DESTROY, C_DMABUF, C_IPC_GET, C_IPC_OPEN,
	C_IPC_CLOSE, C_LOAD, C_FUNCTION, C_LAUNCH, C_UNLOAD, C_CALLS = 32
};

struct state {
	int64_t fail[C_CALLS];  // result of each call, 0 for success
	int64_t after[C_CALLS]; // calls that succeed before the failures
	int64_t calls[C_CALLS];
	int64_t gpus, total, no_dmabuf;
	int64_t lost;                             // result of all calls with a context
	int64_t gate;                             // synchronization waits while this is not 0
	int64_t waiting;                          // threads that wait for the gate
	int64_t contexts, allocs, streams, pins, opened; // alive
	int64_t bytes;                            // of allocations
	int64_t depth;                            // pushed contexts
	int64_t copied;                           // executed copies
	int64_t memory_type, managed, ordinal;    // of foreign pointers
	int64_t foreign, foreign_bytes;           // an allocation of another library
	int64_t modules;                          // alive
	int64_t no_host_pointers;                 // kernels cannot use the addresses of the host
	int64_t own_handles;                      // a process can open its own handles; CUDA refuses them
	int64_t no_alias;                         // copies of opened memory are refused
};

static struct state *st;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __thread int depth; // of this thread's stack of contexts

struct block { uint64_t base; size_t size; char *bytes; int alias; uint64_t offset; };
struct copy { uint64_t to, from; size_t n; int kernel; }; // a kernel has n entries at from
struct stream { int alive, count; struct copy copies[2048]; };

enum { BLOCKS = 4096, STREAMS = 64 };
static struct block blocks[BLOCKS];
static struct stream streams[STREAMS];
static struct block pinned[BLOCKS];
static uint64_t next = 0xd00000000000;
static int memory = -1; // the file

__attribute__((constructor)) static void start(void)
{
	const char *file = getenv("IBVERBX_TEST_CUDA");
	int fd = file ? open(file, O_RDWR | O_CLOEXEC) : -1;

	st = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof(*st), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (st == MAP_FAILED)
		st = calloc(1, sizeof(*st));
	if (fd >= 0)
		close(fd);
	memory = memfd_create("fakecuda", MFD_CLOEXEC);
	if (memory >= 0 && ftruncate(memory, (off_t)1 << 46)) {
		close(memory);
		memory = -1;
	}
}

#define ADD(field, n) __atomic_add_fetch(&st->field, n, __ATOMIC_SEQ_CST)
#define GET(field) __atomic_load_n(&st->field, __ATOMIC_SEQ_CST)

// enter counts a call and returns how it must fail.
static int enter(int call)
{
	int64_t n = ADD(calls[call], 1), code = GET(fail[call]);

	return code && n > GET(after[call]) ? code : 0;
}

// inside is enter for calls that need a context.
static int inside(int call)
{
	int code = enter(call);

	return code ? code : !depth ? 201 : (int)GET(lost);
}

// gone reports whether a call fails because the GPU is lost. What it releases is then gone too.
static int gone(int code) { return code && code == (int)GET(lost); }

static struct block *among(struct block *all, uint64_t address)
{
	for (int i = 0; i < BLOCKS; i++)
		if (all[i].base && address >= all[i].base && address < all[i].base + all[i].size)
			return &all[i];
	return NULL;
}

static struct block *find(uint64_t address) { return among(blocks, address); }

// page rounds up to whole pages.
static size_t page(size_t size) { return (size + 4095) & ~(size_t)4095; }

// make returns a new block, with bytes of the file at offset, of this process if fd is memory. Small ones are not at the beginning
// of a page, as in CUDA.
static struct block *make(size_t size, int fd, uint64_t offset, int alias)
{
	for (int i = 0; i < BLOCKS; i++)
		if (!blocks[i].base) {
			char *bytes = mmap(NULL, page(size), PROT_READ | PROT_WRITE, MAP_SHARED, fd, offset);

			if (bytes == MAP_FAILED)
				return NULL;
			blocks[i] = (struct block){next + (size < 65536 ? 512 : 0), size, bytes, alias, offset};
			next += (size + (4 << 20)) & ~(uint64_t)((2 << 20) - 1);
			return &blocks[i];
		}
	return NULL;
}

int cuInit(unsigned int flags) { return enter(C_INIT); }
int cuDriverGetVersion(int *version) { *version = 12040; return enter(C_VERSION); }
int cuDeviceGetCount(int *count) { *count = st->gpus; return enter(C_COUNT); }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal + 10; return enter(C_DEVICE); }
int cuDeviceGetName(char *name, int n, int device) { snprintf(name, n, "Fake %d", device - 10); return enter(C_NAME); }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = st->total; return enter(C_TOTAL); }
int cuDeviceGetPCIBusId(char *id, int n, int device) { snprintf(id, n, "0000:%02X:00.0", 0x1a + device - 10); return enter(C_PCI); }

int cuDeviceGetAttribute(int *value, int attribute, int device)
{
	*value = attribute == 75 ? 9 : attribute == 76 ? 0 : attribute == 91 ? !st->no_host_pointers : attribute == 116 ? 1 : attribute == 124 ? !st->no_dmabuf : -1;
	return enter(C_ATTRIBUTE);
}

int cuGetErrorName(int code, const char **text)
{
	*text = code == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : code == 719 ? "CUDA_ERROR_LAUNCH_FAILED" : code == 1 ? "CUDA_ERROR_INVALID_VALUE" :
		code == 201 ? "CUDA_ERROR_INVALID_CONTEXT" : code == 100 ? "CUDA_ERROR_NO_DEVICE" : code == 801 ? "CUDA_ERROR_NOT_SUPPORTED" :
		code == 304 ? "CUDA_ERROR_OPERATING_SYSTEM" : NULL;
	return *text ? 0 : 1;
}

int cuGetErrorString(int code, const char **text) { *text = code == 2 ? "out of memory" : "text of the code"; return 0; }

int cuDevicePrimaryCtxRetain(void **context, int device)
{
	int code = enter(C_RETAIN);

	if (!code) {
		ADD(contexts, 1);
		*context = (void *)(uintptr_t)(0x1000 + device);
	}
	return code;
}

int cuDevicePrimaryCtxRelease_v2(int device) { ADD(contexts, -1); return enter(C_RELEASE); }

int cuCtxPushCurrent_v2(void *context)
{
	int code = enter(C_PUSH);

	if (!code) {
		depth++;
		ADD(depth, 1);
	}
	return code;
}

int cuCtxPopCurrent_v2(void **context)
{
	if (!depth)
		return 201;
	depth--;
	ADD(depth, -1);
	return enter(C_POP);
}

int cuMemAlloc_v2(uint64_t *address, size_t bytes)
{
	struct block *b = NULL;
	int code = inside(C_ALLOC);

	if (code)
		return code;
	pthread_mutex_lock(&lock);
	if (bytes <= (size_t)(st->total - st->bytes) && (b = make(bytes, memory, next - 0xd00000000000, 0))) {
		*address = b->base;
		st->bytes += bytes;
		st->allocs++;
	}
	pthread_mutex_unlock(&lock);
	return b ? 0 : 2;
}

static int drop(uint64_t address, int alias)
{
	struct block *b;
	int ok = 0;

	pthread_mutex_lock(&lock);
	b = find(address);
	if (b && b->base == address && b->alias == alias) {
		munmap(b->bytes, page(b->size));
		if (alias) {
			st->opened--;
		} else {
			fallocate(memory, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, b->offset, page(b->size));
			st->bytes -= b->size;
			st->allocs--;
		}
		b->base = 0;
		ok = 1;
	}
	pthread_mutex_unlock(&lock);
	return ok ? 0 : 1;
}

// A lost GPU loses its memory.
int cuMemFree_v2(uint64_t address)
{
	int code = inside(C_FREE);

	if (!code || gone(code))
		(void)(drop(address, 0) && !code && (code = 1));
	return code;
}

int cuMemGetAddressRange_v2(uint64_t *base, size_t *bytes, uint64_t address)
{
	int code = inside(C_RANGE);
	struct block *b;

	if (code)
		return code;
	if (st->foreign && address >= (uint64_t)st->foreign && address < (uint64_t)(st->foreign + st->foreign_bytes)) {
		*base = st->foreign;
		*bytes = st->foreign_bytes;
		return 0;
	}
	pthread_mutex_lock(&lock);
	b = find(address);
	if (b) {
		*base = b->base;
		*bytes = b->size;
	}
	pthread_mutex_unlock(&lock);
	return b ? 0 : 1;
}

int cuPointerGetAttribute(int *value, int attribute, uint64_t address)
{
	int code = inside(C_POINTER);
	int foreign = address >= (uint64_t)st->foreign && address < (uint64_t)(st->foreign + st->foreign_bytes);

	if (code)
		return code;
	pthread_mutex_lock(&lock);
	if (!foreign && !find(address))
		code = 1;
	pthread_mutex_unlock(&lock);
	*value = attribute == 2 ? foreign ? st->memory_type : 2 : !foreign ? 0 : attribute == 8 ? st->managed : st->ordinal;
	return code;
}

int cuMemHostRegister_v2(void *host, size_t bytes, unsigned int flags)
{
	int code = inside(C_PIN);

	if (code)
		return code;
	ADD(pins, 1);
	pthread_mutex_lock(&lock);
	for (int i = 0; i < BLOCKS; i++)
		if (!pinned[i].base) {
			pinned[i] = (struct block){(uintptr_t)host, flags & 2 ? bytes : 0};
			break;
		}
	pthread_mutex_unlock(&lock);
	return 0;
}

int cuMemHostUnregister(void *host)
{
	int code = inside(C_UNPIN);

	if (code && !gone(code))
		return code;
	ADD(pins, -1);
	pthread_mutex_lock(&lock);
	for (int i = 0; i < BLOCKS; i++)
		if (pinned[i].base == (uintptr_t)host)
			pinned[i].base = 0;
	pthread_mutex_unlock(&lock);
	return code;
}

int cuStreamCreate(void **stream, unsigned int flags)
{
	int code = inside(C_STREAM);

	if (code)
		return code;
	pthread_mutex_lock(&lock);
	for (int i = 0; i < STREAMS; i++)
		if (!streams[i].alive) {
			streams[i].alive = 1;
			streams[i].count = 0;
			st->streams++;
			*stream = &streams[i];
			break;
		}
	pthread_mutex_unlock(&lock);
	return 0;
}

int cuStreamDestroy_v2(void *stream)
{
	int code = inside(C_DESTROY);

	if (!code || gone(code)) {
		pthread_mutex_lock(&lock);
		if (((struct stream *)stream)->alive)
			st->streams--;
		else
			code = 400;
		((struct stream *)stream)->alive = 0;
		pthread_mutex_unlock(&lock);
	}
	return code;
}

static int queue(struct stream *s, struct copy c, int code)
{
	if (code)
		return code;
	pthread_mutex_lock(&lock);
	if (!s->alive)
		code = 400;
	else if (s->count < 2048)
		s->copies[s->count++] = c;
	else
		code = 1;
	pthread_mutex_unlock(&lock);
	return code;
}

// copy queues a copy. An address of the GPU that is not allocated is refused.
static int copy(uint64_t to, uint64_t from, uint64_t a, uint64_t b, size_t n, void *stream)
{
	int code = inside(C_COPY), known;

	pthread_mutex_lock(&lock);
	known = find(a) && find(b) && !(st->no_alias && (find(a)->alias || find(b)->alias));
	pthread_mutex_unlock(&lock);
	return queue(stream, (struct copy){to, from, n}, code ? code : known ? 0 : 1);
}

int cuMemcpyHtoDAsync_v2(uint64_t to, void *from, size_t n, void *stream) { return copy(to, (uintptr_t)from, to, to, n, stream); }
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t n, void *stream) { return copy((uintptr_t)to, from, from, from, n, stream); }
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t n, void *stream) { return copy(to, from, to, from, n, stream); }

// where returns the bytes at an address, of the GPU or of the host.
static char *where(uint64_t address)
{
	struct block *b = find(address);

	return b ? b->bytes + (address - b->base) : (char *)(uintptr_t)address;
}

// reach returns the bytes at an address that a kernel uses, NULL if they are not mapped.
static char *reach(uint64_t address, size_t n)
{
	struct block *b = find(address);

	b = b ? b : among(pinned, address);
	return b && address + n <= b->base + b->size ? where(address) : NULL;
}

// run runs a kernel.
static int run(const struct copy *c)
{
	uint64_t *list = (uint64_t *)reach(c->from, c->n * 24);

	for (size_t i = c->n; list && i-- > 0;) {
		uint64_t *e = list + 3 * i;
		char *to = reach(e[0], e[2]), *from = reach(e[1], e[2]);

		if (!to || !from)
			return 700;
		if ((e[0] | e[1]) % 16 || !e[2] || e[2] > 65536)
			return 716;
		memmove(to, from, e[2]);
		st->copied++;
	}
	return list ? 0 : 700;
}

int cuStreamSynchronize(void *stream)
{
	struct stream *s = stream;
	int code = inside(C_SYNC);

	if (GET(gate)) {
		ADD(waiting, 1);
		while (GET(gate))
			sched_yield();
		ADD(waiting, -1);
		code = code ? code : (int)GET(lost); // it may be lost meanwhile
	}
	pthread_mutex_lock(&lock);
	if (!s->alive)
		code = 400;
	if (!code)
		for (int i = 0; i < s->count; i++) {
			if (s->copies[i].kernel) {
				if ((code = run(&s->copies[i])))
					st->lost = code;
				continue;
			}
			memmove(where(s->copies[i].to), where(s->copies[i].from), s->copies[i].n);
			st->copied++;
		}
	if (!code || gone(code))
		s->count = 0;
	pthread_mutex_unlock(&lock);
	return code;
}

#ifndef OLD
int cuModuleLoadData(void **module, const char *text)
{
	int code = inside(C_LOAD);

	if (code || strncmp(text, ".version", 8))
		return code ? code : 218;
	ADD(modules, 1);
	*module = (void *)0x3000;
	return 0;
}

int cuModuleGetFunction(void **function, void *module, const char *name)
{
	*function = (void *)0x4000;
	return strcmp(name, "copy_blocks") ? 500 : inside(C_FUNCTION);
}

int cuModuleUnload(void *module)
{
	int code = inside(C_UNLOAD);

	if (!code || gone(code))
		ADD(modules, -1);
	return code;
}

int cuLaunchKernel(void *function, unsigned int groups, unsigned int y, unsigned int z, unsigned int threads, unsigned int ty,
		   unsigned int tz, unsigned int shared, void *stream, void **args, void **extra)
{
	int code = inside(C_LAUNCH);

	if (!code && (function != (void *)0x4000 || !groups || y != 1 || z != 1 || threads < 16 || threads > 1024 || ty != 1 || tz != 1))
		code = 1;
	return queue(stream, (struct copy){0, *(uint64_t *)args[0], groups, 1}, code);
}

int cuMemGetHandleForAddressRange(int *fd, uint64_t address, size_t bytes, int type, unsigned long long flags)
{
	int code = inside(C_DMABUF);

	if (code || st->no_dmabuf)
		return code ? code : 801;
	if (address % 4096 || bytes % 4096 || type != 1)
		return 1;
	*fd = memfd_create("dmabuf", MFD_CLOEXEC);
	return ftruncate(*fd, bytes) ? 304 : 0;
}

struct handle { uint64_t words[8]; };

// identity is a number of the file that no other file has at the same time.
static uint64_t identity(int fd)
{
	struct stat s;

	return fd < 0 || fstat(fd, &s) ? 0 : s.st_ino;
}

int cuIpcGetMemHandle(struct handle *handle, uint64_t address)
{
	int code = inside(C_IPC_GET);
	struct block *b;

	pthread_mutex_lock(&lock);
	b = find(address);
	if (!code && (!b || b->base != address || b->alias))
		code = 1;
	if (!code)
		*handle = (struct handle){{getpid(), memory, identity(memory), b->offset, b->size}};
	pthread_mutex_unlock(&lock);
	return code;
}

int cuIpcOpenMemHandle_v2(uint64_t *address, struct handle handle, unsigned int flags)
{
	int code = inside(C_IPC_OPEN), fd;
	struct block *alias = NULL;
	struct stat s;
	char path[64];

	if (code)
		return code;
	if (handle.words[0] == (uint64_t)getpid() && !st->own_handles)
		return 201;
	snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)handle.words[0], (int)handle.words[1]);
	fd = open(path, O_RDWR | O_CLOEXEC);
	pthread_mutex_lock(&lock);
	if (identity(fd) == handle.words[2] && handle.words[2] && !fstat(fd, &s) && handle.words[4] && handle.words[3] % 4096 == 0 &&
	    handle.words[3] < (uint64_t)s.st_size && handle.words[4] <= s.st_size - handle.words[3] &&
	    (alias = make(handle.words[4], fd, handle.words[3], 1))) {
		*address = alias->base;
		st->opened++;
	}
	pthread_mutex_unlock(&lock);
	if (fd >= 0)
		close(fd);
	return alias ? 0 : 1;
}

int cuIpcCloseMemHandle(uint64_t address)
{
	int code = inside(C_IPC_CLOSE);

	if (gone(code))
		(void)drop(address, 1);
	return code ? code : drop(address, 1);
}
#endif
