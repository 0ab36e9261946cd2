#define _GNU_SOURCE
#include "loader.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

bool ibx_forked;

static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;
static bool loaded;
static const struct ibx_loader *loader;

static void child(void)
{
	ibx_forked = true;
	if (loader->child)
		loader->child();
}

static void complain(const struct ibx_loader *l, const char *what, const char *why)
{
	if (l->complain)
		l->complain(what, why);
}

// core_path finds the core beside this library.
static int core_path(const char *core, char *path, size_t size)
{
	Dl_info info;
	if (!dladdr((void *)&ibx_forked, &info) || !info.dli_fname)
		return ENOENT;
	const char *slash = strrchr(info.dli_fname, '/');
	int dir = slash ? (int)(slash - info.dli_fname) : 1;
	const char *name = slash ? info.dli_fname : ".";
	if ((size_t)snprintf(path, size, "%.*s/%s", dir, name, core) >= size)
		return ENAMETOOLONG;
	return 0;
}

static int start(const struct ibx_loader *l)
{
	char path[PATH_MAX];
	int err = core_path(l->core, path, sizeof(path));
	if (err)
		return err;
	if (!loader) { // before the core: a child must not call one that has failed to start either
		loader = l;
		pthread_atfork(NULL, NULL, child);
	}
	void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	if (!lib) {
		complain(l, l->what, dlerror());
		return ENOSYS;
	}
	return l->start(lib, path);
}

// start_quietly starts the core without changing how the program handles signals. The threads of the Go runtime
// inherit the mask of the thread that loads it, so the program's handlers never run on them. The runtime replaces the
// actions of some signals; they are restored. Handlers get SA_ONSTACK, because Go sets a signal stack for every thread that
// calls it.
static int start_quietly(const struct ibx_loader *l)
{
	struct sigaction before[NSIG];
	sigset_t all, mask;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &mask);
	for (int s = 1; s < NSIG; s++)
		if (sigaction(s, NULL, &before[s]))
			before[s].sa_handler = NULL;
	int err = start(l);
	if (l->wrap)
		l->wrap();
	for (int s = 1; s < NSIG; s++) {
		if (!l->wrap && before[s].sa_handler != SIG_DFL && before[s].sa_handler != SIG_IGN)
			before[s].sa_flags |= SA_ONSTACK;
		sigaction(s, &before[s], NULL);
	}
	pthread_sigmask(SIG_SETMASK, &mask, NULL);
	return err;
}

int ibx_load_core(const struct ibx_loader *l)
{
	if (ibx_forked)
		return ENODEV;
	pthread_mutex_lock(&loading);
	int err = 0;
	if (!loaded) {
		err = start_quietly(l);
		loaded = !err;
	}
	pthread_mutex_unlock(&loading);
	return err;
}
