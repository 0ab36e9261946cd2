// Loading the Go core into a process that knows nothing of Go.
#define _GNU_SOURCE
#include "shim.h"

#include <dlfcn.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>

struct ibx_core core;
struct ibx_device ibx_devices[IBX_MAX_DEVICES];
int ibx_num_devices;
bool ibx_forked;

static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;
static bool loaded;

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
	ibx_forked = true;
#define GONE(name, params, args) core.name = (__typeof__(core.name))(void (*)(void))gone;
	IBX_CORE(GONE)
#undef GONE
	core.start = (__typeof__(core.start))(void (*)(void))gone_negative;
	core.poll_cq = (__typeof__(core.poll_cq))(void (*)(void))gone_negative;
}

// complain says on stderr why there are no devices. A program only sees an errno.
static void complain(const char *what, const char *why) { fprintf(stderr, "ibverbx: %s: %s\n", what, why); }

// core_path finds the core beside this library.
static int core_path(char *path, size_t size)
{
	Dl_info info;
	if (!dladdr((void *)&core, &info) || !info.dli_fname)
		return ENOENT;
	const char *slash = strrchr(info.dli_fname, '/');
	int dir = slash ? (int)(slash - info.dli_fname) : 1;
	const char *name = slash ? info.dli_fname : ".";
	if ((size_t)snprintf(path, size, "%.*s/libibverbx-core.so", dir, name) >= size)
		return ENAMETOOLONG;
	return 0;
}

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
	if (core.seam() != IBX_SEAM) {
		complain(path, "it belongs to another build of this library; build both again");
		return ENOSYS;
	}
	return 0;
}

// finish lets the core complete its capture and print its counters when the process exits.
static void finish(void) { core.finish(); }

static int start(void)
{
	char path[PATH_MAX];
	int err = core_path(path, sizeof(path));
	if (err)
		return err;
	void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	if (!lib) {
		complain("cannot load the software NIC", dlerror());
		return ENOSYS;
	}
	if ((err = resolve(lib, path)))
		return err;
	int n = core.start(ibx_devices, IBX_MAX_DEVICES);
	if (n < 0)
		return -n; // the core has said why
	ibx_num_devices = n;
	pthread_atfork(NULL, NULL, child);
	atexit(finish);
	return 0;
}

// start_quietly starts the core without changing how the program handles signals. The threads of the Go runtime
// inherit the mask of the thread that loads it, so no handler of the program runs on them. The runtime replaces the
// actions of some signals; they are put back, wrapped by preload/signal.c. Without it, handlers only get SA_ONSTACK:
// Go sets a signal stack for every thread that calls it.
static int start_quietly(void)
{
	struct sigaction before[NSIG];
	sigset_t all, mask;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &mask);
	for (int s = 1; s < NSIG; s++)
		if (sigaction(s, NULL, &before[s]))
			before[s].sa_handler = NULL;
	int err = start();
	if (ibx_wrap)
		ibx_wrap();
	for (int s = 1; s < NSIG; s++) {
		if (!ibx_wrap && before[s].sa_handler != SIG_DFL && before[s].sa_handler != SIG_IGN)
			before[s].sa_flags |= SA_ONSTACK;
		sigaction(s, &before[s], NULL);
	}
	pthread_sigmask(SIG_SETMASK, &mask, NULL);
	return err;
}

int ibx_load(void)
{
	if (ibx_forked)
		return ENODEV;
	pthread_mutex_lock(&loading);
	int err = 0;
	if (!loaded) {
		err = start_quietly();
		loaded = !err;
	}
	pthread_mutex_unlock(&loading);
	return err;
}
