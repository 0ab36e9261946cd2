// Functions behind the tables of all versions, and NCCL's types that they need.
#ifndef IBX_NCCL_PLUGIN_H
#define IBX_NCCL_PLUGIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "seam.h"

// Values of ncclResult_t.
enum { OK = 0, SYSTEM_ERROR = 2, INTERNAL_ERROR = 3, INVALID_ARGUMENT = 4, REMOTE_ERROR = 6 };

// Levels and flags of NCCL's logger.
enum { LOG_WARN = 2, LOG_INFO = 3, LOG_INIT = 1, LOG_NET = 0x10 };

typedef void (*logger)(int level, unsigned long flags, const char *file, int line, const char *format, ...);

struct core {
#define FIELD(name, params) int32_t(*name) params;
	IBX_NCCL_CORE(FIELD)
#undef FIELD
};
extern struct core core;

// ibx_runs are the words of start. The last one, of connections without a worker, stays 0.
extern uint32_t ibx_runs[IBX_WORKERS + 1];
// ibx_parts is the number of parts for tests, otherwise 0.
extern int ibx_parts;

// load loads the core and starts it. It returns an ncclResult_t.
int load(logger log);
void say(int level, const char *format, ...) __attribute__((format(printf, 2, 3)));

int plugin_init(logger log, int version, void **ctx);
int plugin_devices(int *n);
int plugin_listen(void *ctx, int dev, void *handle, void **out);
int plugin_connect(void *ctx, int dev, void *handle, void **out);
int plugin_accept(void *listener, void **out);
int plugin_reg(void *comm, void *data, size_t size, int type, void **out);
int plugin_dereg(void *comm, void *mhandle);
int plugin_isend(void *comm, void *data, size_t size, void *mhandle, void **request);
int plugin_irecv(void *comm, int n, void *data, size_t size, void *mhandle, void **request);
int plugin_flush(void **request);
int plugin_test(void *request, int *done, int *sizes);
int plugin_close(void *comm);
int plugin_close_listen(void *listener);
int plugin_finalize(void *ctx);

#endif
