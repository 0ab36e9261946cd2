// The functions of the Go core and the structures that both sides use.
#ifndef IBX_NCCL_SEAM_H
#define IBX_NCCL_SEAM_H

#include <stdint.h>

#define IBX_SEAM 2
#define IBX_DEPTH 64
#define IBX_HANDLE 128
#define IBX_WORKERS 4

// Results beside the values of ncclResult_t: the call must be repeated later; the shard is freed.
#define IBX_AGAIN (-1)
#define IBX_GONE (-2)

enum { IBX_FREE, IBX_BUSY, IBX_DONE };

struct ibx_comm;

// ibx_request is a request. C moves state from IBX_FREE to IBX_BUSY and from IBX_DONE to IBX_FREE, Go from IBX_BUSY to IBX_DONE.
struct ibx_request {
	uint32_t state;
	int32_t result;
	uint64_t size;
	struct ibx_comm *owner;
};

// ibx_words is the state of a connection that C reads without calling Go.
struct ibx_words {
	uint32_t granted;
	int32_t result;
	// worker is the number of the worker that serves the connection, IBX_WORKERS if there is none.
	uint32_t worker;
	uint32_t reserved;
	struct ibx_request requests[IBX_DEPTH];
};

// ibx_properties describes the device. Strings are empty if unknown.
struct ibx_properties {
	int32_t rails, speed, software;
	char pci_path[256];
	char description[512];
};

// ibx_log is called by the core on any thread. level is 0 for information and 1 for a warning.
typedef void (*ibx_log)(int32_t level, const char *line);

// start gets IBX_WORKERS words and the number of parts, 0 for the default. Word i is 1 while worker i serves its connections without polls.

// Each function is exported by the core as ibx_nccl_NAME. It returns an ncclResult_t, IBX_AGAIN or IBX_GONE. Numbers of objects start at 1.
#define IBX_NCCL_CORE(X) \
	X(seam, (void)) \
	X(start, (void *log, uint32_t *runs, int32_t parts)) \
	X(finish, (void)) \
	X(describe, (struct ibx_properties * out)) \
	X(open, (uint32_t * shard)) \
	X(close_shard, (uint32_t shard)) \
	X(listen, (uint32_t shard, void *handle, uint32_t *listener)) \
	X(close_listen, (uint32_t listener)) \
	X(connect, (uint32_t shard, void *handle, uint32_t *comm)) \
	X(accept, (uint32_t listener, uint32_t *comm)) \
	X(adopt, (uint32_t comm, struct ibx_words *words)) \
	X(close, (uint32_t comm)) \
	X(reg, (uint32_t comm, void *data, uint64_t size, uint32_t *region)) \
	X(dereg, (uint32_t region)) \
	X(isend, (uint32_t comm, void *data, uint64_t size, uint32_t region, uint32_t request)) \
	X(irecv, (uint32_t comm, void *data, uint64_t size, uint32_t region, uint32_t request)) \
	X(poll, (uint32_t shard)) \
	X(rail, (int32_t rail, int32_t up))

#endif
