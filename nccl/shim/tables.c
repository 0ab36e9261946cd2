// The tables of versions 8 to 12. Layouts are NCCL's; the assertions check them.
#include "loader.h"
#include "plugin.h"

#include <string.h>

#define EXPORT __attribute__((visibility("default")))

typedef struct {
	char *name, *pci_path;
	uint64_t guid;
	int ptr_support, reg_is_global;
	int speed, port;
	float latency;
	int max_comms, max_recvs, device_type, device_version;
} properties_v8;

typedef struct {
	int n;
	int devs[4];
} virtual_v9;

typedef struct {
	int n;
	int devs[8];
} virtual_v12;

// The properties of versions 9 and 10, 11, and 12 begin alike.
#define PROPERTIES_V9(virtual_type) \
	char *name, *pci_path; \
	uint64_t guid; \
	int ptr_support, reg_is_global, force_flush; \
	int speed, port; \
	float latency; \
	int max_comms, max_recvs, device_type, device_version; \
	virtual_type virtual; \
	size_t max_p2p_bytes, max_coll_bytes;

typedef struct {
	PROPERTIES_V9(virtual_v9)
} properties_v9;

typedef struct {
	PROPERTIES_V9(virtual_v9)
	int max_multi_request_size;
} properties_v11;

typedef struct {
	PROPERTIES_V9(virtual_v12)
	int max_multi_request_size;
	int16_t rail_id, plane_id;
} properties_v12;

#define AT(type, field, offset) _Static_assert(offsetof(type, field) == offset, #type "." #field)
#define SIZE(type, size) _Static_assert(sizeof(type) == size, #type)

SIZE(properties_v8, 64);
AT(properties_v8, guid, 16);
AT(properties_v8, ptr_support, 24);
AT(properties_v8, reg_is_global, 28);
AT(properties_v8, speed, 32);
AT(properties_v8, port, 36);
AT(properties_v8, latency, 40);
AT(properties_v8, max_comms, 44);
AT(properties_v8, max_recvs, 48);
AT(properties_v8, device_type, 52);
AT(properties_v8, device_version, 56);
SIZE(properties_v9, 104);
AT(properties_v9, force_flush, 32);
AT(properties_v9, speed, 36);
AT(properties_v9, port, 40);
AT(properties_v9, latency, 44);
AT(properties_v9, max_comms, 48);
AT(properties_v9, max_recvs, 52);
AT(properties_v9, device_type, 56);
AT(properties_v9, device_version, 60);
AT(properties_v9, virtual, 64);
AT(properties_v9, max_p2p_bytes, 88);
AT(properties_v9, max_coll_bytes, 96);
SIZE(properties_v11, 112);
AT(properties_v11, max_multi_request_size, 104);
SIZE(properties_v12, 128);
AT(properties_v12, max_p2p_bytes, 104);
AT(properties_v12, max_coll_bytes, 112);
AT(properties_v12, max_multi_request_size, 120);
AT(properties_v12, rail_id, 124);
AT(properties_v12, plane_id, 126);

// TABLE declares the table of a version. The arguments are the parameter types that differ.
#define TABLE(version, init_params, properties, p_ctx, p_config, size_type, p_handle, p_handles, tail) \
	typedef struct { \
		const char *name; \
		int (*init) init_params; \
		int (*devices)(int *n); \
		int (*get_properties)(int dev, properties *out); \
		int (*listen)(p_ctx int dev, void *handle, void **listener); \
		int (*connect)(p_ctx int dev, p_config void *handle, void **comm, void **device); \
		int (*accept)(void *listener, void **comm, void **device); \
		int (*reg)(void *comm, void *data, size_t size, int type, void **mhandle); \
		int (*reg_dmabuf)(void *comm, void *data, size_t size, int type, uint64_t offset, int fd, void **mhandle); \
		int (*dereg)(void *comm, void *mhandle); \
		int (*isend)(void *comm, void *data, size_type size, int tag, void *mhandle, p_handle void **request); \
		int (*irecv)(void *comm, int n, void **data, size_type *sizes, int *tags, void **mhandles, p_handles void **request); \
		int (*iflush)(void *comm, int n, void **data, int *sizes, void **mhandles, void **request); \
		int (*test)(void *request, int *done, int *sizes); \
		int (*close_send)(void *comm); \
		int (*close_recv)(void *comm); \
		int (*close_listen)(void *listener); \
		int (*get_device_mr)(void *comm, void *mhandle, void **device); \
		int (*irecv_consumed)(void *comm, int n, void *request); \
		tail \
	} table_v##version; \
	AT(table_v##version, init, 8); \
	AT(table_v##version, devices, 16); \
	AT(table_v##version, get_properties, 24); \
	AT(table_v##version, listen, 32); \
	AT(table_v##version, connect, 40); \
	AT(table_v##version, accept, 48); \
	AT(table_v##version, reg, 56); \
	AT(table_v##version, reg_dmabuf, 64); \
	AT(table_v##version, dereg, 72); \
	AT(table_v##version, isend, 80); \
	AT(table_v##version, irecv, 88); \
	AT(table_v##version, iflush, 96); \
	AT(table_v##version, test, 104); \
	AT(table_v##version, close_send, 112); \
	AT(table_v##version, close_recv, 120); \
	AT(table_v##version, close_listen, 128); \
	AT(table_v##version, get_device_mr, 136); \
	AT(table_v##version, irecv_consumed, 144)

#define NONE
#define CTX void *ctx,
#define CONFIG void *config,
#define PHANDLE void *phandle,
#define PHANDLES void **phandles,
#define MAKE_V9 int (*make_virtual)(int *dev, void *props);
#define TAIL_V11 MAKE_V9 int (*finalize)(void *ctx); int (*set_attributes)(void *ctx, void *attributes);
#define INIT_V11 (void **ctx, uint64_t comm_id, void *config, logger log, void *profiler)

TABLE(8, (logger log), properties_v8, NONE, NONE, int, NONE, NONE, NONE);
TABLE(9, (logger log), properties_v9, NONE, NONE, size_t, NONE, NONE, MAKE_V9);
TABLE(10, (logger log, void *profiler), properties_v9, NONE, CONFIG, size_t, PHANDLE, PHANDLES, MAKE_V9);
TABLE(11, INIT_V11, properties_v11, CTX, NONE, size_t, PHANDLE, PHANDLES, TAIL_V11);
TABLE(12, INIT_V11, properties_v12, CTX, NONE, size_t, PHANDLE, PHANDLES, TAIL_V11);
SIZE(table_v8, 152);
SIZE(table_v9, 160);
SIZE(table_v10, 160);
SIZE(table_v11, 176);
SIZE(table_v12, 176);
AT(table_v9, make_virtual, 152);
AT(table_v11, finalize, 160);
AT(table_v11, set_attributes, 168);

enum { HOST_MEMORY = 1, MAX_P2P = 1 << 30, MAX_COLL = 1 << 29, MAX_COMMS = 65536, DEFAULT_SPEED = 10000 };

static const float software_latency = 20; // microseconds, only for NCCL's tuning

// The strings of the properties live as long as the library.
static char device_name[] = "ibverbx";
static char device_path[256];

static int describe(int dev, struct ibx_properties *p)
{
	if (dev != 0)
		return INVALID_ARGUMENT;
	if (ibx_forked || !core.seam || core.describe(p))
		return SYSTEM_ERROR;
	if (strcmp(device_path, p->pci_path)) // the same in each call
		memcpy(device_path, p->pci_path, sizeof(device_path));
	return OK;
}

#define FILL(out, p) \
	memset(out, 0, sizeof(*(out))); \
	(out)->name = device_name; \
	(out)->pci_path = device_path[0] ? device_path : NULL; \
	(out)->guid = 1; \
	(out)->ptr_support = HOST_MEMORY; \
	(out)->speed = (p).speed ? (p).speed : DEFAULT_SPEED; \
	(out)->port = 1; \
	(out)->latency = (p).software ? software_latency : 0; \
	(out)->max_comms = MAX_COMMS; \
	(out)->max_recvs = 1

#define FILL_V9(out, p) \
	FILL(out, p); \
	(out)->virtual.n = 1; \
	(out)->max_p2p_bytes = MAX_P2P; \
	(out)->max_coll_bytes = MAX_COLL

static int properties8(int dev, properties_v8 *out)
{
	struct ibx_properties p;
	int err = describe(dev, &p);
	if (!err) {
		FILL(out, p);
	}
	return err;
}

static int properties9(int dev, properties_v9 *out)
{
	struct ibx_properties p;
	int err = describe(dev, &p);
	if (!err) {
		FILL_V9(out, p);
	}
	return err;
}

static int properties11(int dev, properties_v11 *out)
{
	struct ibx_properties p;
	int err = describe(dev, &p);
	if (!err) {
		FILL_V9(out, p);
		out->max_multi_request_size = 1;
	}
	return err;
}

static int properties12(int dev, properties_v12 *out)
{
	struct ibx_properties p;
	int err = describe(dev, &p);
	if (!err) {
		FILL_V9(out, p);
		out->max_multi_request_size = 1;
		out->rail_id = out->plane_id = -1;
	}
	return err;
}

static int init8(logger log) { return plugin_init(log, 8, NULL); }
static int init9(logger log) { return plugin_init(log, 9, NULL); }

static int init10(logger log, void *profiler)
{
	(void)profiler;
	return plugin_init(log, 10, NULL);
}

static int init11(void **ctx, uint64_t comm_id, void *config, logger log, void *profiler)
{
	(void)comm_id, (void)config, (void)profiler;
	return plugin_init(log, 11, ctx);
}

static int init12(void **ctx, uint64_t comm_id, void *config, logger log, void *profiler)
{
	(void)comm_id, (void)config, (void)profiler;
	return plugin_init(log, 12, ctx);
}

static int listen8(int dev, void *handle, void **listener) { return plugin_listen(NULL, dev, handle, listener); }
static int listen11(void *ctx, int dev, void *handle, void **listener) { return plugin_listen(ctx, dev, handle, listener); }

static int connect8(int dev, void *handle, void **comm, void **device)
{
	(void)device;
	return plugin_connect(NULL, dev, handle, comm);
}

static int connect10(int dev, void *config, void *handle, void **comm, void **device)
{
	(void)config, (void)device;
	return plugin_connect(NULL, dev, handle, comm);
}

static int connect11(void *ctx, int dev, void *handle, void **comm, void **device)
{
	(void)device;
	return plugin_connect(ctx, dev, handle, comm);
}

static int accept8(void *listener, void **comm, void **device)
{
	(void)device;
	return plugin_accept(listener, comm);
}

static int reg_dmabuf(void *comm, void *data, size_t size, int type, uint64_t offset, int fd, void **mhandle)
{
	(void)comm, (void)data, (void)size, (void)type, (void)offset, (void)fd;
	*mhandle = NULL;
	return INTERNAL_ERROR; // the properties exclude it
}

static int isend8(void *comm, void *data, int size, int tag, void *mhandle, void **request)
{
	(void)tag;
	*request = NULL;
	return size < 0 ? INVALID_ARGUMENT : plugin_isend(comm, data, (size_t)size, mhandle, request);
}

static int isend9(void *comm, void *data, size_t size, int tag, void *mhandle, void **request)
{
	(void)tag;
	return plugin_isend(comm, data, size, mhandle, request);
}

static int isend10(void *comm, void *data, size_t size, int tag, void *mhandle, void *phandle, void **request)
{
	(void)tag, (void)phandle;
	return plugin_isend(comm, data, size, mhandle, request);
}

static int irecv8(void *comm, int n, void **data, int *sizes, int *tags, void **mhandles, void **request)
{
	(void)tags;
	*request = NULL;
	return sizes[0] < 0 ? INVALID_ARGUMENT : plugin_irecv(comm, n, data[0], (size_t)sizes[0], mhandles[0], request);
}

static int irecv9(void *comm, int n, void **data, size_t *sizes, int *tags, void **mhandles, void **request)
{
	(void)tags;
	return plugin_irecv(comm, n, data[0], sizes[0], mhandles[0], request);
}

static int irecv10(void *comm, int n, void **data, size_t *sizes, int *tags, void **mhandles, void **phandles, void **request)
{
	(void)tags, (void)phandles;
	return plugin_irecv(comm, n, data[0], sizes[0], mhandles[0], request);
}

static int iflush8(void *comm, int n, void **data, int *sizes, void **mhandles, void **request)
{
	(void)comm, (void)n, (void)data, (void)sizes, (void)mhandles;
	return plugin_flush(request);
}

#define TABLE_OF(version, v_init, v_properties, v_listen, v_connect, v_isend, v_irecv, ...) \
	EXPORT const table_v##version ncclNetPlugin_v##version = { \
		.name = device_name, .init = v_init, .devices = plugin_devices, .get_properties = v_properties, .listen = v_listen, \
		.connect = v_connect, .accept = accept8, .reg = plugin_reg, .reg_dmabuf = reg_dmabuf, .dereg = plugin_dereg, .isend = v_isend, \
		.irecv = v_irecv, .iflush = iflush8, .test = plugin_test, .close_send = plugin_close, .close_recv = plugin_close, \
		.close_listen = plugin_close_listen, __VA_ARGS__ \
	}

TABLE_OF(8, init8, properties8, listen8, connect8, isend8, irecv8, );
TABLE_OF(9, init9, properties9, listen8, connect8, isend9, irecv9, );
TABLE_OF(10, init10, properties9, listen8, connect10, isend10, irecv10, );
TABLE_OF(11, init11, properties11, listen11, connect11, isend10, irecv10, .finalize = plugin_finalize);
TABLE_OF(12, init12, properties12, listen11, connect11, isend10, irecv10, .finalize = plugin_finalize);
