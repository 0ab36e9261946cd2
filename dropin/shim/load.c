// Resolving the functions of the Go core.
#define _GNU_SOURCE
#include "shim.h"

#include <dlfcn.h>
#include <stdio.h>

struct ibx_core core;
struct ibx_device ibx_devices[IBX_MAX_DEVICES];
int ibx_num_devices;

// go holds the functions of the core as it exports them.
static struct ibx_core go;

// preload/signal.c defers signals between ibx_enter and ibx_leave. All three are NULL without it.
void ibx_wrap(void) __attribute__((weak));
void ibx_enter(void) __attribute__((weak));
void ibx_leave(void) __attribute__((weak));

#define GUARDED(name, params, args) \
	static int32_t guarded_##name params \
	{ \
		if (ibx_enter) \
			ibx_enter(); \
		int32_t result = go.name args; \
		if (ibx_leave) \
			ibx_leave(); \
		return result; \
	}
IBX_CORE(GUARDED)
#undef GUARDED

static int32_t gone(void) { return ENODEV; }
static int32_t gone_negative(void) { return -ENODEV; }

// child makes every function of the core fail: its threads were not copied by fork.
static void child(void)
{
#define GONE(name, params, args) core.name = (__typeof__(core.name))(void (*)(void))gone;
	IBX_CORE(GONE)
#undef GONE
	core.start = (__typeof__(core.start))(void (*)(void))gone_negative;
	core.poll_cq = (__typeof__(core.poll_cq))(void (*)(void))gone_negative;
}

// complain says on stderr why there are no devices. A program only sees an errno.
static void complain(const char *what, const char *why) { fprintf(stderr, "ibverbx: %s: %s\n", what, why); }

static int resolve(void *lib, const char *path)
{
#define RESOLVE(name, params, args) \
	go.name = (__typeof__(go.name))dlsym(lib, "ibx_" #name); \
	if (!go.name) { \
		complain(path, dlerror()); \
		return ENOSYS; \
	} \
	core.name = guarded_##name;
	IBX_CORE(RESOLVE)
#undef RESOLVE
	if (core.abi() != IBX_ABI) {
		complain(path, "it belongs to another build of this library; build both again");
		return ENOSYS;
	}
	return 0;
}

// finish lets the core complete its capture and print its counters when the process exits.
static void finish(void) { core.finish(); }

static int start(void *lib, const char *path)
{
	int err = resolve(lib, path);
	if (err)
		return err;
	int n = core.start(ibx_devices, IBX_MAX_DEVICES);
	if (n < 0)
		return -n; // the core has said why
	ibx_num_devices = n;
	atexit(finish);
	return 0;
}

int ibx_load(void)
{
	static const struct ibx_loader loader = {
		.core = "libibverbx-core.so",
		.what = "cannot load the software NIC",
		.start = start,
		.wrap = ibx_wrap,
		.child = child,
		.complain = complain,
	};
	return ibx_load_core(&loader);
}
