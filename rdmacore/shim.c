//go:build linux && cgo && !386 && !arm && !mips && !mipsle

// The C side finds libibverbs at run time and calls it. Nothing here blocks except destroying
// an object while an event about it is being handled. No Go memory is kept after a call
// returns.

#define _GNU_SOURCE
#include "shim.h"

#include "datapath.h"
#include "symbols.h"

#include <dlfcn.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

_Static_assert(sizeof(struct flat_send) == 128, "verbs.SendWR has 128 bytes");
_Static_assert(sizeof(struct flat_recv) == 80, "verbs.RecvWR has 80 bytes");
_Static_assert(sizeof(struct flat_wc) == 48, "verbs.WC has 48 bytes");
_Static_assert(sizeof(struct vb_wc) == sizeof(struct flat_wc), "completions are converted where they lie");
_Static_assert(offsetof(struct vb_wc, wr_id) == offsetof(struct flat_wc, wrid), "wr_id stays where it is");
_Static_assert(sizeof(struct vb_sge) == 16, "elements cross as they are");
_Static_assert(sizeof(void *) == 8, "the flat values are laid out for 64 bits");

#define LIB(l) ((struct library *)(l))
#define CTX(c) ((struct vb_context *)(c))

// missing returns the errno of a verb that returned no object.
static int missing(void)
{
	return errno ? errno : EIO;
}

static void *find(void *handle, const char *symbol, const char *version)
{
#ifdef __GLIBC__
	return dlvsym(handle, symbol, version);
#else
	(void)version; // musl has no symbol versions
	return dlsym(handle, symbol);
#endif
}

int shim_load(const char *path, uintptr_t *out, char *text, size_t size)
{
	struct library *lib = calloc(1, sizeof(*lib));
	const char *absent = NULL;

	if (!lib)
		return SHIM_NO_MEMORY;
	// The library has its own threads and handlers, so it is never unloaded.
	lib->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	if (!lib->handle) {
		const char *why = dlerror();

		strncpy(text, why ? why : "", size - 1);
		free(lib);
		return SHIM_NO_LIBRARY;
	}
#define FIND(result, name, args, symbol, version, needed)                                                                      \
	*(void **)&lib->name = find(lib->handle, symbol, version);                                                             \
	if (!lib->name && needed && !absent)                                                                                   \
		absent = symbol "@" version;
	SYMBOLS(FIND)
#undef FIND
	if (absent) {
		strncpy(text, absent, size - 1);
		shim_unload((uintptr_t)lib);
		return SHIM_OLD_LIBRARY;
	}
	*out = (uintptr_t)lib;
	return SHIM_LOADED;
}

void shim_unload(uintptr_t lib)
{
	dlclose(LIB(lib)->handle);
	free(LIB(lib));
}

int shim_fork_init(uintptr_t lib)
{
	return LIB(lib)->fork_init ? failed(LIB(lib)->fork_init()) : ENOSYS;
}

int shim_devices(uintptr_t lib, uintptr_t *list, uint32_t *count)
{
	int n = 0;
	struct vb_device **devices;

	errno = 0;
	devices = LIB(lib)->get_device_list(&n);
	if (!devices)
		return missing();
	*list = (uintptr_t)devices;
	*count = n < 0 ? 0 : n;
	return 0;
}

void shim_device_at(uintptr_t lib, uintptr_t list, uint32_t index, struct shim_device *out)
{
	struct vb_device *d = ((struct vb_device **)list)[index];

	memcpy(out->name, d->name, sizeof(out->name));
	memcpy(out->path, d->ibdev_path, sizeof(out->path));
	out->name[sizeof(out->name) - 1] = 0;
	out->path[sizeof(out->path) - 1] = 0;
	out->guid = be64toh(LIB(lib)->get_device_guid(d));
	out->transport = d->transport_type;
	out->node = d->node_type;
}

void shim_devices_free(uintptr_t lib, uintptr_t list)
{
	LIB(lib)->free_device_list((struct vb_device **)list);
}

// extended returns the structure with the newer operations if it is large enough to include
// the one at offset, NULL otherwise.
static struct vb_context_ex *extended(struct vb_context *ctx, size_t offset)
{
	struct vb_context_ex *ex;

	if (ctx->abi_compat != (void *)UINTPTR_MAX)
		return NULL;
	ex = (void *)((char *)ctx - offsetof(struct vb_context_ex, context));
	return ex->size < sizeof(*ex) - offset ? NULL : ex;
}

#define EXTENDED(ctx, op) extended(ctx, offsetof(struct vb_context_ex, op))

static int unblock(int fd)
{
	int flags = fcntl(fd, F_GETFL);

	return flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0 ? errno : 0;
}

int shim_open(uintptr_t lib, uintptr_t list, uint32_t index, struct shim_opened *out)
{
	struct vb_context *ctx;
	struct vb_context_ex *ex;
	int err;

	errno = 0;
	ctx = LIB(lib)->open_device(((struct vb_device **)list)[index]);
	if (!ctx)
		return missing();
	err = unblock(ctx->async_fd);
	if (err) {
		LIB(lib)->close_device(ctx);
		return err;
	}
	ex = EXTENDED(ctx, create_cq_ex);
	out->ctx = (uintptr_t)ctx;
	out->async_fd = ctx->async_fd;
	out->vectors = ctx->num_comp_vectors;
	out->extended_cq = ex && ex->create_cq_ex;
	out->dmabuf = LIB(lib)->reg_dmabuf_mr != NULL;
	return 0;
}

int shim_close(uintptr_t lib, uintptr_t ctx)
{
	return failed(LIB(lib)->close_device(CTX(ctx)));
}

int shim_query_device(uintptr_t lib, uintptr_t ctx, struct vb_device_attr *attr, uint64_t *clock_khz)
{
	struct vb_context_ex *ex = EXTENDED(CTX(ctx), query_device_ex);
	struct vb_device_attr_ex all;

	*clock_khz = 0;
	memset(&all, 0, sizeof(all));
	if (ex && ex->query_device_ex && !ex->query_device_ex(CTX(ctx), NULL, &all, sizeof(all)))
		*clock_khz = all.completion_timestamp_mask ? all.hca_core_clock : 0;
	return failed(LIB(lib)->query_device(CTX(ctx), attr));
}

int shim_read_clock(uintptr_t ctx, uint64_t *ticks)
{
	struct vb_context_ex *ex = EXTENDED(CTX(ctx), query_rt_values);
	struct vb_values_ex values = {.comp_mask = VB_VALUES_CLOCK};
	int err = ex && ex->query_rt_values ? failed(ex->query_rt_values(CTX(ctx), &values)) : EOPNOTSUPP;

	*ticks = values.nanoseconds; // seconds stay 0
	return err;
}

int shim_query_port(uintptr_t lib, uintptr_t ctx, uint8_t port, struct vb_port_attr *attr)
{
	struct vb_context_ex *ex = EXTENDED(CTX(ctx), query_port);

	memset(attr, 0, sizeof(*attr));
	if (ex && ex->query_port)
		return failed(ex->query_port(CTX(ctx), port, attr, sizeof(*attr)));
	return failed(LIB(lib)->query_port(CTX(ctx), port, attr));
}

int shim_query_gid(uintptr_t lib, uintptr_t ctx, uint32_t port, uint32_t index, struct vb_gid_entry *row, uint32_t *has_type)
{
	int err;

	memset(row, 0, sizeof(*row));
	*has_type = 0;
	errno = 0;
	if (LIB(lib)->query_gid_ex) {
		err = failed(LIB(lib)->query_gid_ex(CTX(ctx), port, index, row, 0, sizeof(*row)));
		if (err != EOPNOTSUPP) {
			*has_type = 1;
			return err;
		}
	}
	return failed(LIB(lib)->query_gid(CTX(ctx), port, index, &row->gid));
}

int64_t shim_gid_table(uintptr_t lib, uintptr_t ctx, struct vb_gid_entry *rows, size_t count)
{
	if (!LIB(lib)->query_gid_table)
		return -ENOSYS;
	return LIB(lib)->query_gid_table(CTX(ctx), rows, count, 0, sizeof(struct vb_gid_entry));
}

int shim_alloc_pd(uintptr_t lib, uintptr_t ctx, uintptr_t *pd)
{
	errno = 0;
	*pd = (uintptr_t)LIB(lib)->alloc_pd(CTX(ctx));
	return *pd ? 0 : missing();
}

int shim_dealloc_pd(uintptr_t lib, uintptr_t pd)
{
	return failed(LIB(lib)->dealloc_pd((struct vb_pd *)pd));
}

static int region(struct vb_mr *mr, struct shim_region *out)
{
	if (!mr)
		return missing();
	out->mr = (uintptr_t)mr;
	out->lkey = mr->lkey;
	out->rkey = mr->rkey;
	return 0;
}

int shim_reg_mr(uintptr_t lib, uintptr_t pd, uint64_t addr, uint64_t length, uint32_t access, struct shim_region *out)
{
	const uint32_t optional = 0x3ff00000; // hints that older libraries and kernels do not know

	errno = 0;
	if (access & optional && LIB(lib)->reg_mr_iova2)
		return region(LIB(lib)->reg_mr_iova2((struct vb_pd *)pd, (void *)addr, length, addr, access), out);
	return region(LIB(lib)->reg_mr((struct vb_pd *)pd, (void *)addr, length, access & ~optional), out);
}

int shim_reg_dmabuf(uintptr_t lib, uintptr_t pd, uint64_t offset, uint64_t length, uint64_t iova, int fd, uint32_t access,
		    struct shim_region *out)
{
	if (!LIB(lib)->reg_dmabuf_mr)
		return EOPNOTSUPP;
	errno = 0;
	return region(LIB(lib)->reg_dmabuf_mr((struct vb_pd *)pd, offset, length, iova, fd, access), out);
}

int shim_dereg_mr(uintptr_t lib, uintptr_t mr)
{
	return failed(LIB(lib)->dereg_mr((struct vb_mr *)mr));
}

int shim_create_channel(uintptr_t lib, uintptr_t ctx, uintptr_t *out, int32_t *fd)
{
	struct vb_comp_channel *channel;
	int err;

	errno = 0;
	channel = LIB(lib)->create_channel(CTX(ctx));
	if (!channel)
		return missing();
	err = unblock(channel->fd);
	if (err) {
		LIB(lib)->destroy_channel(channel);
		return err;
	}
	*out = (uintptr_t)channel;
	*fd = channel->fd;
	return 0;
}

int shim_destroy_channel(uintptr_t lib, uintptr_t channel)
{
	struct vb_comp_channel *c = (struct vb_comp_channel *)channel;
	int fd = c->fd, err = failed(LIB(lib)->destroy_channel(c));

	if (err) // the library still counts the CQs of a device that is gone
		close(fd);
	return err;
}

int shim_create_cq(uintptr_t lib, uintptr_t ctx, uint32_t depth, uintptr_t channel, uint32_t vector, uint64_t wc_flags,
		   uint32_t flags, uint32_t single_poll, struct shim_queue *out)
{
	struct cq *c = calloc(1, sizeof(*c));
	int err;

	if (!c)
		return ENOMEM;
	errno = 0;
	if (wc_flags) {
		struct vb_cq_init_attr_ex attr = {
			.cqe = depth,
			.channel = (struct vb_comp_channel *)channel,
			.comp_vector = vector,
			.wc_flags = wc_flags,
			.comp_mask = flags ? VB_CQ_INIT_FLAGS : 0,
			.flags = flags,
		};

		c->ex = EXTENDED(CTX(ctx), create_cq_ex)->create_cq_ex(CTX(ctx), &attr);
		c->cq = (struct vb_cq *)c->ex;
	} else {
		c->cq = LIB(lib)->create_cq(CTX(ctx), depth, NULL, (struct vb_comp_channel *)channel, vector);
	}
	if (!c->cq) {
		err = missing();
		free(c);
		return err;
	}
	c->poll = CTX(ctx)->ops.poll_cq;
	c->timestamps = (wc_flags & VB_CQ_EX_TIMESTAMP) != 0;
	c->single_poll = single_poll;
	out->queue = (uintptr_t)c;
	out->key = (uintptr_t)c->cq;
	out->depth = c->cq->cqe;
	return 0;
}

int shim_destroy_cq(uintptr_t lib, uintptr_t cq)
{
	struct cq *c = (struct cq *)cq;
	int err = failed(LIB(lib)->destroy_cq(c->cq));

	if (!err)
		free(c);
	return err;
}

int shim_arm(uintptr_t cq, uint32_t solicited_only)
{
	struct vb_cq *c = ((struct cq *)cq)->cq;

	return failed(c->context->ops.req_notify_cq(c, solicited_only));
}

int shim_cq_event(uintptr_t lib, uintptr_t channel, uintptr_t *key)
{
	struct vb_cq *cq = NULL;
	void *unused;

	errno = 0;
	if (LIB(lib)->get_cq_event((struct vb_comp_channel *)channel, &cq, &unused))
		return missing();
	*key = (uintptr_t)cq;
	return 0;
}

void shim_ack_cq_event(uintptr_t lib, uintptr_t key)
{
	LIB(lib)->ack_cq_events((struct vb_cq *)key, 1);
}

int shim_create_srq(uintptr_t lib, uintptr_t pd, uint32_t max_wr, uint32_t max_sge, struct shim_queue *out)
{
	struct vb_srq_init_attr attr = {.attr = {.max_wr = max_wr, .max_sge = max_sge}};
	struct srq *s = calloc(1, sizeof(*s));
	int err;

	if (!s)
		return ENOMEM;
	errno = 0;
	s->srq = LIB(lib)->create_srq((struct vb_pd *)pd, &attr);
	if (!s->srq) {
		err = missing();
		free(s);
		return err;
	}
	s->post = s->srq->context->ops.post_srq_recv;
	s->max_sge = max_sge;
	out->queue = (uintptr_t)s;
	out->key = (uintptr_t)s->srq;
	out->depth = attr.attr.max_wr;
	return 0;
}

int shim_set_limit(uintptr_t lib, uintptr_t srq, uint32_t limit)
{
	struct vb_srq_attr attr = {.srq_limit = limit};

	return failed(LIB(lib)->modify_srq(((struct srq *)srq)->srq, &attr, VB_SRQ_LIMIT));
}

int shim_destroy_srq(uintptr_t lib, uintptr_t srq)
{
	struct srq *s = (struct srq *)srq;
	int err = failed(LIB(lib)->destroy_srq(s->srq));

	if (!err)
		free(s);
	return err;
}

int shim_create_qp(uintptr_t lib, uintptr_t pd, const struct shim_qp_init *init, struct shim_qp_made *out)
{
	struct vb_qp_init_attr attr = {
		.send_cq = ((struct cq *)init->send_cq)->cq,
		.recv_cq = ((struct cq *)init->recv_cq)->cq,
		.srq = init->srq ? ((struct srq *)init->srq)->srq : NULL,
		.cap = init->cap,
		.qp_type = init->type,
		.sq_sig_all = init->signal_all,
	};
	struct qp *q = aligned_alloc(_Alignof(struct qp), sizeof(*q));
	int err;

	if (!q)
		return ENOMEM;
	memset(q, 0, sizeof(*q));
	errno = 0;
	q->qp = LIB(lib)->create_qp((struct vb_pd *)pd, &attr);
	if (!q->qp) {
		err = missing();
		free(q);
		return err;
	}
	q->post_send = q->qp->context->ops.post_send;
	q->post_recv = q->qp->context->ops.post_recv;
	q->max_msg = init->max_msg;
	q->max_inline = attr.cap.max_inline_data;
	q->legal = init->legal;
	q->plain = init->type == 4 || init->cap.max_send_sge == 0 ? 0 : init->legal & 0x1f;
	q->max_send_sge = init->cap.max_send_sge;
	q->max_recv_sge = init->cap.max_recv_sge;
	q->datagrams = init->type == 4;
	if (q->datagrams) // other threads may be polling
		__atomic_store_n(&((struct cq *)init->recv_cq)->datagrams, 1, __ATOMIC_RELAXED);
	out->qp = (uintptr_t)q;
	out->key = (uintptr_t)q->qp;
	out->num = q->qp->qp_num;
	out->max_inline = q->max_inline;
	return 0;
}

int shim_destroy_qp(uintptr_t lib, uintptr_t qp)
{
	return failed(LIB(lib)->destroy_qp(((struct qp *)qp)->qp));
}

void shim_free_qp(uintptr_t qp) { free((void *)qp); }

int shim_modify_qp(uintptr_t lib, uintptr_t qp, struct vb_qp_attr *attr, int mask)
{
	return failed(LIB(lib)->modify_qp(((struct qp *)qp)->qp, attr, mask));
}

int shim_query_qp_state(uintptr_t lib, uintptr_t qp, int32_t *state)
{
	struct vb_qp_attr attr;
	struct vb_qp_init_attr init;
	int err = failed(LIB(lib)->query_qp(((struct qp *)qp)->qp, &attr, 1, &init));

	*state = attr.qp_state;
	return err;
}

int shim_create_ah(uintptr_t lib, uintptr_t pd, struct vb_ah_attr *attr, uintptr_t *ah)
{
	errno = 0;
	*ah = (uintptr_t)LIB(lib)->create_ah((struct vb_pd *)pd, attr);
	return *ah ? 0 : missing();
}

int shim_destroy_ah(uintptr_t lib, uintptr_t ah)
{
	return failed(LIB(lib)->destroy_ah((struct vb_ah *)ah));
}

int shim_async_event(uintptr_t lib, uintptr_t ctx, struct shim_event *out)
{
	struct vb_async_event event = {.element = {.object = NULL}};

	errno = 0;
	if (LIB(lib)->get_async_event(CTX(ctx), &event))
		return missing();
	out->element = (uintptr_t)event.element.object;
	out->type = event.event_type;
	return 0;
}

void shim_ack_async_event(uintptr_t lib, struct shim_event *event)
{
	struct vb_async_event e = {.element = {.object = (void *)event->element}, .event_type = event->type};

	LIB(lib)->ack_async_event(&e);
}
