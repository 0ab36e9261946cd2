// Completion channels and completion queues.
#define _GNU_SOURCE
#include "shim.h"

#include <arpa/inet.h>
#include <sys/eventfd.h>

int ibx_take(int fd)
{
	uint64_t one;
	return read(fd, &one, sizeof(one)) == sizeof(one) ? 0 : -1;
}

void ibx_await_acks(pthread_mutex_t *mutex, pthread_cond_t *cond, uint32_t *acked, uint32_t taken)
{
	pthread_mutex_lock(mutex);
	while (*acked != taken)
		pthread_cond_wait(cond, mutex);
	pthread_mutex_unlock(mutex);
}

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *base)
{
	struct channel *ch = calloc(1, sizeof(*ch));
	if (!ch)
		return fail(ENOMEM);
	ch->base.context = base;
	ch->base.fd = eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC);
	int err = ch->base.fd < 0 ? errno : core.create_channel(ctx_handle(base), ch->base.fd, &ch->handle);
	if (err) {
		if (ch->base.fd >= 0)
			close(ch->base.fd);
		free(ch);
		return fail(err);
	}
	return &ch->base;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *base)
{
	struct channel *ch = container_of(base, struct channel, base);
	int err = core.destroy_channel(ch->handle);
	if (err)
		return err;
	close(base->fd);
	free(ch);
	return 0;
}

int ibv_get_cq_event(struct ibv_comp_channel *base, struct ibv_cq **cq, void **cq_context)
{
	struct channel *ch = container_of(base, struct channel, base);
	uint64_t cookie;
	int err;
	do { // a token without an event belonged to a CQ that is gone
		if (ibx_forked) {
			errno = ENODEV;
			return -1;
		}
		if (ibx_take(base->fd))
			return -1;
		err = core.take_event(ch->handle, &cookie);
	} while (err == EAGAIN);
	if (err) {
		errno = err;
		return -1;
	}
	*cq = (struct ibv_cq *)(uintptr_t)cookie;
	*cq_context = (*cq)->cq_context;
	return 0;
}

void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int n)
{
	pthread_mutex_lock(&cq->mutex);
	cq->comp_events_completed += n;
	pthread_cond_signal(&cq->cond);
	pthread_mutex_unlock(&cq->mutex);
}

// new_cq makes a CQ, of which every one has the size of an extended one.
static struct cq *new_cq(struct ibv_context *base, int cqe, void *cq_context, struct ibv_comp_channel *channel, int vector, bool stamps)
{
	if (vector < 0 || vector >= base->num_comp_vectors)
		return fail(EINVAL);
	struct cq *cq = calloc(1, sizeof(*cq));
	if (!cq)
		return fail(ENOMEM);
	uint32_t ch = channel ? container_of(channel, struct channel, base)->handle : 0;
	int32_t depth;
	int err = core.create_cq(ctx_handle(base), cqe, ch, (uintptr_t)cq, stamps, &cq->ex.handle, &depth);
	if (err) {
		free(cq);
		return fail(err);
	}
	cq->ex.context = base;
	cq->ex.channel = channel;
	cq->ex.cq_context = cq_context;
	cq->ex.cqe = depth;
	pthread_mutex_init(&cq->ex.mutex, NULL);
	pthread_cond_init(&cq->ex.cond, NULL);
	pthread_mutex_init(&cq->reading, NULL);
	return cq;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *base, int cqe, void *cq_context, struct ibv_comp_channel *channel, int vector)
{
	struct cq *cq = new_cq(base, cqe, cq_context, channel, vector, false);
	return cq ? ibv_cq_ex_to_cq(&cq->ex) : NULL;
}

int ibv_resize_cq(struct ibv_cq *cq, int cqe)
{
	int32_t depth;
	int err = core.resize_cq(cq->handle, cqe, &depth);
	if (!err)
		cq->cqe = depth;
	return err;
}

int ibv_destroy_cq(struct ibv_cq *cq)
{
	struct ibx_delivered taken;
	int err = core.destroy_cq(cq->handle, &taken);
	if (err)
		return err;
	ibx_await_acks(&cq->mutex, &cq->cond, &cq->comp_events_completed, taken.completion);
	ibx_await_acks(&cq->mutex, &cq->cond, &cq->async_events_completed, taken.async);
	free(to_cq(cq));
	return 0;
}

static int req_notify_cq(struct ibv_cq *cq, int solicited) { return core.arm_cq(cq->handle, solicited); }

// service_level returns what mlx5 reports here for datagrams: the kind of their header. UCX reads it.
static uint8_t service_level(struct ibv_context *base, const struct ibx_wc *wc)
{
	enum { ipv6 = 0x9, ipv4 = 0xa };
	if (!(wc->flags & IBV_WC_GRH))
		return wc->sl;
	return to_context(base)->ipv6 ? ipv6 : ipv4;
}

static void set_wc(struct ibv_context *base, struct ibv_wc *to, const struct ibx_wc *from)
{
	*to = (struct ibv_wc){
		.wr_id = from->wr_id,
		.status = from->status,
		.opcode = from->opcode,
		.vendor_err = from->vendor_err,
		.byte_len = from->byte_len,
		.imm_data = htonl(from->imm),
		.qp_num = from->qpn,
		.src_qp = from->src_qpn,
		.wc_flags = from->flags,
		.pkey_index = from->pkey_index,
		.slid = from->slid,
		.sl = service_level(base, from),
	};
}

enum { poll_batch = 32 };

static int poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc)
{
	struct ibx_wc batch[poll_batch];
	int done = 0;
	while (done < n) {
		int want = n - done < poll_batch ? n - done : poll_batch;
		int got = core.poll_cq(cq->handle, batch, want);
		if (got < 0)
			return done ? done : got;
		for (int i = 0; i < got; i++)
			set_wc(cq->context, &wc[done++], &batch[i]);
		if (got < want)
			break;
	}
	return done;
}

static struct cq *from_ex(struct ibv_cq_ex *ex) { return container_of(ex, struct cq, ex); }

static int next_poll(struct ibv_cq_ex *ex)
{
	struct cq *cq = from_ex(ex);
	int n = core.poll_cq(ex->handle, &cq->wc, 1);
	if (n <= 0)
		return n < 0 ? -n : ENOENT;
	ex->wr_id = cq->wc.wr_id;
	ex->status = cq->wc.status;
	return 0;
}

static int start_poll(struct ibv_cq_ex *ex, struct ibv_poll_cq_attr *attr)
{
	struct cq *cq = from_ex(ex);
	if (attr && attr->comp_mask)
		return EINVAL;
	if (!cq->single)
		pthread_mutex_lock(&cq->reading);
	int err = next_poll(ex);
	if (err && !cq->single)
		pthread_mutex_unlock(&cq->reading);
	return err;
}

static void end_poll(struct ibv_cq_ex *ex)
{
	if (!from_ex(ex)->single)
		pthread_mutex_unlock(&from_ex(ex)->reading);
}

static enum ibv_wc_opcode read_opcode(struct ibv_cq_ex *ex) { return from_ex(ex)->wc.opcode; }
static uint32_t read_vendor_err(struct ibv_cq_ex *ex) { return from_ex(ex)->wc.vendor_err; }
static uint32_t read_byte_len(struct ibv_cq_ex *ex) { return from_ex(ex)->wc.byte_len; }
static __be32 read_imm_data(struct ibv_cq_ex *ex) { return htonl(from_ex(ex)->wc.imm); }
static uint32_t read_qp_num(struct ibv_cq_ex *ex) { return from_ex(ex)->wc.qpn; }
static uint32_t read_src_qp(struct ibv_cq_ex *ex) { return from_ex(ex)->wc.src_qpn; }
static unsigned int read_wc_flags(struct ibv_cq_ex *ex) { return from_ex(ex)->wc.flags; }
static uint32_t read_slid(struct ibv_cq_ex *ex) { return from_ex(ex)->wc.slid; }
static uint8_t read_dlid_path_bits(struct ibv_cq_ex *ex) { (void)ex; return 0; }
static uint64_t read_completion_ts(struct ibv_cq_ex *ex) { return from_ex(ex)->wc.timestamp; }

static uint8_t read_sl(struct ibv_cq_ex *ex)
{
	return service_level(ex->context, &from_ex(ex)->wc);
}

static struct ibv_cq_ex *create_cq_ex(struct ibv_context *base, struct ibv_cq_init_attr_ex *attr)
{
	const uint64_t flags = IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP;
	const uint32_t known = IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
	uint32_t create = attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS ? attr->flags : 0;
	if (attr->comp_mask & ~(uint32_t)(IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD))
		return fail(EINVAL);
	if (attr->wc_flags & ~flags || create & ~known)
		return fail(EOPNOTSUPP);
	if (attr->cqe > INT32_MAX)
		return fail(EINVAL);
	bool stamps = attr->wc_flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP;
	struct cq *cq = new_cq(base, (int)attr->cqe, attr->cq_context, attr->channel, (int)attr->comp_vector, stamps);
	if (!cq)
		return NULL;
	cq->single = create & IBV_CREATE_CQ_ATTR_SINGLE_THREADED;
	cq->ex.start_poll = start_poll;
	cq->ex.next_poll = next_poll;
	cq->ex.end_poll = end_poll;
	cq->ex.read_opcode = read_opcode;
	cq->ex.read_vendor_err = read_vendor_err;
	cq->ex.read_byte_len = read_byte_len;
	cq->ex.read_imm_data = read_imm_data;
	cq->ex.read_qp_num = read_qp_num;
	cq->ex.read_src_qp = read_src_qp;
	cq->ex.read_wc_flags = read_wc_flags;
	cq->ex.read_slid = read_slid;
	cq->ex.read_sl = read_sl;
	cq->ex.read_dlid_path_bits = read_dlid_path_bits;
	cq->ex.read_completion_ts = read_completion_ts;
	return &cq->ex;
}

void ibx_cq_ops(struct verbs_context *v)
{
	v->create_cq_ex = create_cq_ex;
	v->context.ops.poll_cq = poll_cq;
	v->context.ops.req_notify_cq = req_notify_cq;
}
