#define _GNU_SOURCE
#include "net.h"

#include <dlfcn.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

const char *net_path;
int net_version = 11;
void *net_ctx;
bool net_verbose;
int rank, peer_pid;
int channel = -1; // to the other process

static void *library;
static const char *table;

// Offsets of the functions in a table.
enum {
	INIT = 8, DEVICES = 16, PROPERTIES = 24, LISTEN = 32, CONNECT = 40, ACCEPT = 48, REG = 56, DEREG = 72, ISEND = 80, IRECV = 88, IFLUSH = 96,
	TEST = 104, CLOSE_SEND = 112, CLOSE_RECV = 120, CLOSE_LISTEN = 128, FINALIZE = 160,
};

// limit bounds the time of one wait, in seconds.
static const double limit = 60;

void fail(const char *file, int line, const char *format, ...)
{
	char text[512];
	va_list args;
	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	fprintf(stderr, "%s:%d: rank %d, table v%d: %s\n", file, line, rank, net_version, text);
	fflush(stderr);
	if (peer_pid > 0)
		kill(peer_pid, SIGTERM);
	_exit(1);
}

double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

void pause_ms(int ms)
{
	struct timespec t = {ms / 1000, ms % 1000 * 1000000L};
	while (nanosleep(&t, &t))
		;
}

static void log_line(int level, unsigned long flags, const char *file, int line, const char *format, ...)
{
	(void)flags, (void)file, (void)line;
	if (level > 2 && !net_verbose)
		return;
	char text[1200];
	va_list args;
	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	fprintf(stderr, "rank %d: %s\n", rank, text);
}

static void *fn(int offset) { return *(void *const *)(table + offset); }

void net_load(void)
{
	char symbol[32];
	library = dlopen(net_path, RTLD_NOW | RTLD_LOCAL);
	CHECK(library, "%s", dlerror());
	snprintf(symbol, sizeof(symbol), "ncclNetPlugin_v%d", net_version);
	const char *parts = getenv("IBVERBX_TEST_PARTS");
	if (parts) {
		void (*set)(int) = (void (*)(int))dlsym(library, "ibverbx_nccl_parts");
		CHECK(set, "%s", dlerror());
		set(atoi(parts));
	}
	table = dlsym(library, symbol);
	CHECK(table, "%s has no %s", net_path, symbol);
	CHECK(!strcmp(*(const char *const *)table, "ibverbx"), "the name is %s", *(const char *const *)table);
}

void net_unload(void)
{
	CHECK(!dlclose(library), "%s", dlerror());
	library = NULL;
}

int net_init(void **ctx)
{
	*ctx = NULL;
	if (net_version >= 11) {
		int config = -1;
		return ((int (*)(void **, uint64_t, void *, void *, void *))fn(INIT))(ctx, 7, &config, (void *)log_line, NULL);
	}
	if (net_version == 10)
		return ((int (*)(void *, void *))fn(INIT))((void *)log_line, NULL);
	return ((int (*)(void *))fn(INIT))((void *)log_line);
}

int net_finalize(void *ctx) { return net_version >= 11 ? ((int (*)(void *))fn(FINALIZE))(ctx) : 0; }

int net_devices(int *n) { return ((int (*)(int *))fn(DEVICES))(n); }

void net_describe(struct device *d)
{
	char p[256];
	memset(p, 0x55, sizeof(p));
	int err = ((int (*)(int, void *))fn(PROPERTIES))(0, p);
	CHECK(!err, "getProperties: %d", err);
	int shift = net_version == 8 ? 0 : 4;
	d->name = *(char **)p;
	d->pci_path = *(char **)(p + 8);
	d->ptr_support = *(int *)(p + 24);
	d->speed = *(int *)(p + 32 + shift);
	d->max_comms = *(int *)(p + 44 + shift);
	d->max_recvs = *(int *)(p + 48 + shift);
	CHECK(*(int *)(p + 52 + shift) == 0 && *(int *)(p + 56 + shift) == 0, "the device type is %d", *(int *)(p + 52 + shift));
	int end = net_version == 8 ? 64 : net_version <= 10 ? 104 : net_version == 11 ? 112 : 128;
	CHECK(p[end] == 0x55, "getProperties wrote behind its structure");
	if (net_version >= 9) {
		CHECK(*(int *)(p + 64) == 1 && *(int *)(p + 68) == 0, "vProps: %d devices", *(int *)(p + 64));
		size_t most = *(size_t *)(p + (net_version == 12 ? 104 : 88));
		CHECK(most >= 1 << 20 && most <= 1ul << 40, "maxP2pBytes is %zu", most);
	}
	if (net_version == 12)
		CHECK(*(int16_t *)(p + 124) == -1 && *(int16_t *)(p + 126) == -1, "railId, planeId");
}

void net_open(void)
{
	struct device d;
	int n = 0;
	net_load();
	int err = net_init(&net_ctx);
	CHECK(!err, "init: %d", err);
	err = net_devices(&n);
	CHECK(!err && n == 1, "devices: %d, %d devices", err, n);
	net_describe(&d);
	CHECK(d.name && d.ptr_support == 1 && d.speed > 0 && d.max_comms >= 1000 && d.max_recvs == 1, "properties of %s", d.name);
}

int net_listen(void *handle, void **listener)
{
	if (net_version >= 11)
		return ((int (*)(void *, int, void *, void **))fn(LISTEN))(net_ctx, 0, handle, listener);
	return ((int (*)(int, void *, void **))fn(LISTEN))(0, handle, listener);
}

int net_connect(void *handle, void **comm)
{
	void *device = NULL;
	int config = -1;
	if (net_version >= 11)
		return ((int (*)(void *, int, void *, void **, void **))fn(CONNECT))(net_ctx, 0, handle, comm, &device);
	if (net_version == 10)
		return ((int (*)(int, void *, void *, void **, void **))fn(CONNECT))(0, &config, handle, comm, &device);
	return ((int (*)(int, void *, void **, void **))fn(CONNECT))(0, handle, comm, NULL);
}

int net_accept(void *listener, void **comm) { return ((int (*)(void *, void **, void **))fn(ACCEPT))(listener, comm, NULL); }

int net_reg(void *comm, void *data, size_t size, void **mhandle)
{
	return ((int (*)(void *, void *, size_t, int, void **))fn(REG))(comm, data, size, 1, mhandle);
}

int net_dereg(void *comm, void *mhandle) { return ((int (*)(void *, void *))fn(DEREG))(comm, mhandle); }

int net_isend(void *comm, void *data, size_t size, void *mhandle, void **request)
{
	if (net_version == 8)
		return ((int (*)(void *, void *, int, int, void *, void **))fn(ISEND))(comm, data, (int)size, 5, mhandle, request);
	if (net_version == 9)
		return ((int (*)(void *, void *, size_t, int, void *, void **))fn(ISEND))(comm, data, size, 5, mhandle, request);
	return ((int (*)(void *, void *, size_t, int, void *, void *, void **))fn(ISEND))(comm, data, size, 5, mhandle, NULL, request);
}

int net_irecv(void *comm, void *data, size_t size, void *mhandle, void **request)
{
	int tag = 5, small = (int)size;
	if (net_version == 8)
		return ((int (*)(void *, int, void **, int *, int *, void **, void **))fn(IRECV))(comm, 1, &data, &small, &tag, &mhandle, request);
	if (net_version == 9)
		return ((int (*)(void *, int, void **, size_t *, int *, void **, void **))fn(IRECV))(comm, 1, &data, &size, &tag, &mhandle, request);
	void *phandle = NULL;
	return ((int (*)(void *, int, void **, size_t *, int *, void **, void **, void **))fn(IRECV))(comm, 1, &data, &size, &tag, &mhandle, &phandle, request);
}

int net_test(void *request, int *done, int *size) { return ((int (*)(void *, int *, int *))fn(TEST))(request, done, size); }
int net_close_send(void *comm) { return ((int (*)(void *))fn(CLOSE_SEND))(comm); }
int net_close_recv(void *comm) { return ((int (*)(void *))fn(CLOSE_RECV))(comm); }
int net_close_listen(void *listener) { return ((int (*)(void *))fn(CLOSE_LISTEN))(listener); }

int net_rail(int rail, int up)
{
	int (*set)(int, int) = (int (*)(int, int))dlsym(library, "ibverbx_nccl_rail");
	CHECK(set, "%s", dlerror());
	return set(rail, up);
}

static uint64_t mix(uint64_t x)
{
	x ^= x >> 33;
	x *= 0xff51afd7ed558ccdULL;
	x ^= x >> 33;
	x *= 0xc4ceb9fe1a85ec53ULL;
	return x ^ x >> 33;
}

void fill(unsigned char *b, size_t n, uint64_t seed)
{
	uint64_t x;
	for (size_t i = 0; i < n; i += 8) {
		x = mix(seed * 0x9e3779b97f4a7c15ULL + i + 1);
		memcpy(b + i, &x, n - i < 8 ? n - i : 8);
	}
}

bool same(const unsigned char *b, size_t n, uint64_t seed)
{
	uint64_t x;
	for (size_t i = 0; i < n; i += 8) {
		x = mix(seed * 0x9e3779b97f4a7c15ULL + i + 1);
		if (memcmp(b + i, &x, n - i < 8 ? n - i : 8))
			return false;
	}
	return true;
}

void *map(size_t size)
{
	void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(p != MAP_FAILED, "mmap: %s", strerror(errno));
	return p;
}

void put(const void *b, size_t n) { CHECK(write(channel, b, n) == (ssize_t)n, "the other process is gone"); }

void take(void *b, size_t n)
{
	for (size_t got = 0; got < n;) {
		ssize_t k = read(channel, (char *)b + got, n - got);
		if (k < 0 && errno == EINTR)
			continue;
		CHECK(k > 0, "the other process is gone");
		got += (size_t)k;
	}
}

void meet(void)
{
	char c = 1;
	put(&c, 1);
	take(&c, 1);
}

void *connection(int from)
{
	char handle[HANDLE];
	void *comm = NULL, *listener = NULL;
	double end = now() + limit;
	if (rank != from) {
		int err = net_listen(handle, &listener);
		CHECK(!err && listener, "listen: %d", err);
		put(handle, HANDLE);
	} else {
		take(handle, HANDLE);
	}
	while (!comm) {
		int err = rank == from ? net_connect(handle, &comm) : net_accept(listener, &comm);
		CHECK(!err, "%s: %d", rank == from ? "connect" : "accept", err);
		CHECK(now() < end, "no connection within %g s", limit);
		if (!comm)
			pause_ms(1);
	}
	if (listener)
		CHECK(!net_close_listen(listener), "closeListen");
	return comm;
}

void *post(bool send, void *comm, void *data, size_t n, void *mhandle)
{
	for (double end = now() + limit;;) {
		void *request = (void *)1; // NCCL's hint
		int err = send ? net_isend(comm, data, n, mhandle, &request) : net_irecv(comm, data, n, mhandle, &request);
		CHECK(!err, "%s: %d", send ? "isend" : "irecv", err);
		if (request)
			return request;
		CHECK(now() < end, "no request within %g s", limit);
		sched_yield(); // as NCCL does
	}
}

int await(void *request)
{
	int done = 0, size = -1;
	for (double end = now() + limit; !done;) {
		int err = net_test(request, &done, &size);
		CHECK(!err, "test: %d", err);
		CHECK(now() < end, "a request is not done within %g s", limit);
		if (!done)
			sched_yield();
	}
	return size;
}

int await_error(void *request, double seconds)
{
	for (double end = now() + seconds;;) {
		int done = 0, err = net_test(request, &done, NULL);
		if (err)
			return err;
		CHECK(!done, "a request succeeded");
		CHECK(now() < end, "a request has not failed within %g s", seconds);
		pause_ms(1);
	}
}

int transfer(int from, void *comm, unsigned char *data, size_t n, size_t room, void *mhandle)
{
	return await(post(rank == from, comm, data, rank == from ? n : room, mhandle));
}
