// Loading the Go core, and its log.
#define _GNU_SOURCE
#include "loader.h"
#include "plugin.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

struct core core;
uint32_t ibx_runs[IBX_WORKERS + 1];
int ibx_parts;

static logger nccl_log;
// finished is set when the process exits: NCCL may close its log at any time.
static bool finished;

void say(int level, const char *format, ...)
{
	char line[1024];
	va_list args;
	va_start(args, format);
	vsnprintf(line, sizeof(line), format, args);
	va_end(args);
	logger log = __atomic_load_n(&nccl_log, __ATOMIC_ACQUIRE);
	if (log)
		log(level, LOG_INIT | LOG_NET, "ibverbx", 0, "%s", line);
	else
		fprintf(stderr, "%s\n", line);
}

static void go_log(int32_t level, const char *line)
{
	if (!ibx_forked && !__atomic_load_n(&finished, __ATOMIC_ACQUIRE))
		say(level ? LOG_WARN : LOG_INFO, "%s", line);
}

static void complain(const char *what, const char *why) { say(LOG_WARN, "NET/ibverbx : not in use: %s: %s", what, why); }

static void finish(void)
{
	__atomic_store_n(&finished, true, __ATOMIC_RELEASE);
	if (!ibx_forked)
		core.finish();
}

static int resolve(void *lib, const char *path)
{
#define RESOLVE(name, params) \
	core.name = (__typeof__(core.name))dlsym(lib, "ibx_nccl_" #name); \
	if (!core.name) { \
		complain(path, dlerror()); \
		return ENOSYS; \
	}
	IBX_NCCL_CORE(RESOLVE)
#undef RESOLVE
	if (core.seam() != IBX_SEAM) {
		complain(path, "it belongs to another build of this library; build both again");
		return ENOSYS;
	}
	return 0;
}

static int start(void *lib, const char *path)
{
	int err = resolve(lib, path);
	if (!err && core.start((void *)go_log, ibx_runs, ibx_parts))
		err = ENODEV; // the core has logged the reason
	if (err)
		core.seam = NULL; // devices and getProperties must not use the core
	else
		atexit(finish);
	return err;
}

int load(logger log)
{
	static const struct ibx_loader loader = {
		.core = "libibverbx-nccl.so", .what = "cannot load the core", .start = start, .complain = complain,
	};
	if (log)
		__atomic_store_n(&nccl_log, log, __ATOMIC_RELEASE);
	return ibx_load_core(&loader) ? SYSTEM_ERROR : OK;
}
