// A stand-in for libibverbs for tests. It has no device, completes everything at once, obeys
// the settings in a file that the test also maps, and counts live objects.

#define _GNU_SOURCE
#include "standin.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct standin *shared;

__attribute__((constructor)) static void begin(void)
{
	const char *path = getenv("IBVERBX_TEST_STANDIN");
	int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;

	shared = fd < 0 ? calloc(1, sizeof(*shared)) : mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (fd >= 0)
		close(fd);
}

// fails reports whether the test wants a verb to fail, and sets errno.
static int fails(int verb)
{
	int e = shared->fail[verb];

	if (e)
		errno = e;
	return e;
}

// alive holds the serials of the live objects. As in the kernel, events of a destroyed object
// are not delivered.
static uint8_t alive[1 << 20];
static pthread_mutex_t world = PTHREAD_MUTEX_INITIALIZER;

static uint32_t born(void)
{
	static uint32_t last;
	uint32_t serial;

	pthread_mutex_lock(&world);
	serial = ++last % sizeof(alive);
	alive[serial] = 1;
	pthread_mutex_unlock(&world);
	return serial;
}

static void dies(uint32_t serial)
{
	pthread_mutex_lock(&world);
	alive[serial] = 0;
	pthread_mutex_unlock(&world);
}

static void count(pthread_mutex_t *mutex, pthread_cond_t *cond, int *events, int n)
{
	pthread_mutex_lock(mutex);
	*events += n;
	pthread_cond_signal(cond);
	pthread_mutex_unlock(mutex);
}

// tally counts an event at its object.
static void tally(void *object, int type, int n)
{
	struct s_cq *cq = object;
	struct s_srq *s = object;
	struct s_qp *q = object;

	if (type <= 0)
		count(&cq->ex.base.mutex, &cq->ex.base.cond, &cq->events, n);
	else if (type == 15)
		count(&s->srq.mutex, &s->srq.cond, &s->events, n);
	else if (type < 8)
		count(&q->qp.mutex, &q->qp.cond, &q->events, n);
}

// take reads the next event of a live object from a pipe.
static int take(int fd, struct news *n)
{
	int fresh;

	do {
		if (read(fd, n, sizeof(*n)) != sizeof(*n))
			return -1;
		pthread_mutex_lock(&world);
		fresh = alive[n->serial];
		if (fresh)
			tally(n->object, n->type, 1);
		pthread_mutex_unlock(&world);
	} while (!fresh);
	return 0;
}

static void *make(int kind, size_t size)
{
	void *p = calloc(1, size);

	__atomic_fetch_add(&shared->live[kind], 1, __ATOMIC_SEQ_CST);
	return p;
}

static int gone(int kind, void *p)
{
	__atomic_fetch_sub(&shared->live[kind], 1, __ATOMIC_SEQ_CST);
	free(p);
	return 0;
}

#define CONTEXT(c) ((struct s_context *)((char *)(c)-offsetof(struct s_context, ex.context)))

struct vb_device **ibv_get_device_list(int *count)
{
	struct vb_device **list;
	int n = shared->devices;

	if (fails(V_DEVICES))
		return NULL;
	list = make(L_LIST, (n + 1) * sizeof(*list));
	for (int i = 0; i < n; i++) {
		list[i] = calloc(1, sizeof(**list));
		snprintf(list[i]->name, VB_NAME_MAX, "standin%d", i);
		snprintf(list[i]->ibdev_path, VB_PATH_MAX, "%s/standin%d", shared->sysfs[0] ? shared->sysfs : "/nonexistent", i);
	}
	if (count)
		*count = n;
	return list;
}

void ibv_free_device_list(struct vb_device **list)
{
	for (int i = 0; list[i]; i++)
		free(list[i]);
	gone(L_LIST, list);
}

uint64_t ibv_get_device_guid(struct vb_device *d)
{
	return htobe64(0x0102030405060700 + d->name[strlen(d->name) - 1] - '0');
}

int ibv_query_port(struct vb_context *, uint8_t, struct vb_port_attr *);
int ibv_query_device(struct vb_context *, struct vb_device_attr *);

static int query_port(struct vb_context *c, uint8_t port, struct vb_port_attr *attr, size_t size)
{
	(void)size;
	shared->extended_calls++;
	return ibv_query_port(c, port, attr);
}

static int query_device_ex(struct vb_context *c, const void *in, struct vb_device_attr_ex *attr, size_t size)
{
	(void)c, (void)in, (void)size;
	attr->completion_timestamp_mask = shared->cq.timestamps ? ~0ull : 0;
	attr->hca_core_clock = 156250; // kHz
	return 0;
}

static int query_rt_values(struct vb_context *c, struct vb_values_ex *values)
{
	(void)c;
	values->nanoseconds = values->comp_mask == VB_VALUES_CLOCK ? 5000000000 : 0;
	return fails(V_CLOCK);
}

struct vb_context *ibv_open_device(struct vb_device *d)
{
	struct s_context *c;
	struct vb_context *v;
	int fds[2];

	if (fails(V_OPEN) || pipe2(fds, O_CLOEXEC))
		return NULL;
	c = make(L_CONTEXT, sizeof(*c));
	v = &c->ex.context;
	v->async_fd = fds[0];
	c->async_in = fds[1];
	v->num_comp_vectors = 1;
	(void)d;
	v->ops.post_send = standin_post_send;
	v->ops.post_recv = standin_post_recv;
	v->ops.post_srq_recv = standin_post_srq;
	v->ops.poll_cq = standin_poll;
	v->ops.req_notify_cq = standin_arm;
	if (!shared->device.old_context) {
		v->abi_compat = (void *)UINTPTR_MAX;
		c->ex.size = sizeof(c->ex);
		c->ex.query_port = query_port;
		c->ex.create_cq_ex = standin_create_cq_ex;
		c->ex.query_device_ex = query_device_ex;
		c->ex.query_rt_values = query_rt_values;
	}
	return v;
}

int ibv_close_device(struct vb_context *v)
{
	struct s_context *c = CONTEXT(v);

	if (fails(V_CLOSE))
		return -1;
	close(v->async_fd);
	close(c->async_in);
	return gone(L_CONTEXT, c);
}

int ibv_query_device(struct vb_context *c, struct vb_device_attr *a)
{
	(void)c;
	memset(a, 0, sizeof(*a));
	strcpy(a->fw_ver, "stand-in");
	a->node_guid = htobe64(0x0102030405060700);
	a->max_mr_size = 1ull << 40;
	a->max_qp = a->max_cq = a->max_mr = a->max_pd = a->max_ah = 1 << 20;
	a->max_qp_wr = a->max_cqe = 1 << 15;
	a->max_sge = 32;
	a->max_qp_rd_atom = a->max_qp_init_rd_atom = 16;
	a->atomic_cap = 1;
	a->max_srq = 64;
	a->max_srq_wr = 1 << 15;
	a->max_srq_sge = 32;
	a->phys_port_cnt = shared->device.ports ? shared->device.ports : 2;
	return fails(V_QUERY);
}

int ibv_query_port(struct vb_context *c, uint8_t port, struct vb_port_attr *a)
{
	(void)c;
	a->state = 4;
	a->max_mtu = 5;
	a->active_mtu = 3;
	a->gid_tbl_len = shared->device.gids[port - 1] ? shared->device.gids[port - 1] : 4;
	a->pkey_tbl_len = 1;
	a->max_msg_sz = 1 << 30;
	a->link_layer = 2;
	a->active_width = 2;
	a->active_speed = 32;
	return 0;
}

// Row 1 of the GID table holds ::ffff:10.0.0.port; the others are empty.
int ibv_query_gid(struct vb_context *c, uint8_t port, int index, struct vb_gid *gid)
{
	uint8_t raw[16] = {0};

	(void)c;
	if (fails(V_GID))
		return -1;
	if (index == 1) {
		memcpy(raw + 10, "\xff\xff\x0a\0\0", 5);
		raw[15] = port;
	}
	memcpy(gid, raw, 16);
	return 0;
}

// As in the kernel, the array must have space for the rows of all ports.
ssize_t _ibv_query_gid_table(struct vb_context *c, struct vb_gid_entry *rows, size_t max, uint32_t flags, size_t size)
{
	size_t n = 0;

	(void)c, (void)flags;
	if (!shared->device.gids[0] || size != sizeof(*rows))
		return -EOPNOTSUPP;
	for (uint32_t port = 1; port <= 2; port++)
		for (uint32_t i = 0; i < shared->device.gids[port - 1]; i++) {
			if (n == max)
				return -EINVAL;
			rows[n] = (struct vb_gid_entry){.gid_index = i, .port_num = port, .gid_type = 2};
			ibv_query_gid(c, port, 1, &rows[n++].gid);
		}
	return n;
}

struct vb_pd *ibv_alloc_pd(struct vb_context *c)
{
	struct vb_pd *pd;

	if (fails(V_PD))
		return NULL;
	pd = make(L_PD, sizeof(*pd));
	pd->context = c;
	return pd;
}

int ibv_dealloc_pd(struct vb_pd *pd) { return fails(V_DEALLOC_PD) ? shared->fail[V_DEALLOC_PD] : gone(L_PD, pd); }

struct vb_mr *ibv_reg_mr(struct vb_pd *pd, void *addr, size_t length, int access)
{
	struct vb_mr *mr;

	if (fails(V_MR))
		return NULL;
	mr = make(L_MR, sizeof(*mr));
	mr->context = pd->context;
	mr->pd = pd;
	mr->addr = addr;
	mr->length = length;
	mr->lkey = ++shared->keys;
	mr->rkey = mr->lkey ^ 0x5555;
	shared->access = access;
	return mr;
}

// The checks are those of the kernel. Any file that has a size counts as a dma-buf.
struct vb_mr *ibv_reg_dmabuf_mr(struct vb_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access)
{
	struct stat st;

	if (fails(V_DMABUF) || fstat(fd, &st))
		return NULL;
	if (offset + length < offset || offset + length > (uint64_t)st.st_size || (offset ^ iova) & 4095) {
		errno = EINVAL;
		return NULL;
	}
	memcpy(shared->dmabuf, (uint64_t[]){offset, length, iova, fd}, sizeof(shared->dmabuf));
	return ibv_reg_mr(pd, NULL, length, access);
}

int ibv_dereg_mr(struct vb_mr *mr)
{
	__atomic_fetch_add(&shared->deregs, 1, __ATOMIC_SEQ_CST);
	linger();
	return fails(V_DEREG) ? shared->fail[V_DEREG] : gone(L_MR, mr);
}

struct vb_comp_channel *ibv_create_comp_channel(struct vb_context *c)
{
	struct s_channel *ch;
	int fds[2];

	if (fails(V_CHANNEL) || pipe2(fds, O_CLOEXEC))
		return NULL;
	ch = make(L_CHANNEL, sizeof(*ch));
	ch->channel.context = c;
	ch->channel.fd = fds[0];
	ch->in = fds[1];
	return &ch->channel;
}

int ibv_destroy_comp_channel(struct vb_comp_channel *channel)
{
	struct s_channel *ch = (struct s_channel *)channel;

	close(ch->in); // the kernel's end
	if (channel->refcnt)
		return EBUSY;
	close(channel->fd);
	return gone(L_CHANNEL, ch);
}

struct vb_cq *ibv_create_cq(struct vb_context *c, int cqe, void *user, struct vb_comp_channel *channel, int vector)
{
	struct s_cq *cq;

	(void)vector;
	if (fails(V_CQ))
		return NULL;
	cq = make(L_CQ, sizeof(*cq));
	cq->ex.base.context = c;
	cq->ex.base.channel = channel;
	if (channel)
		channel->refcnt++;
	cq->ex.base.cq_context = user;
	cq->ex.base.cqe = cqe;
	cq->serial = born();
	pthread_mutex_init(&cq->ex.base.mutex, NULL);
	pthread_cond_init(&cq->ex.base.cond, NULL);
	return &cq->ex.base;
}

// settle waits until every event read for an object is acknowledged, as the library does.
static void settle(pthread_mutex_t *mutex, pthread_cond_t *cond, int *events)
{
	pthread_mutex_lock(mutex);
	while (*events)
		pthread_cond_wait(cond, mutex);
	pthread_mutex_unlock(mutex);
}

int ibv_destroy_cq(struct vb_cq *v)
{
	struct s_cq *cq = (struct s_cq *)v;

	if (fails(V_DESTROY_CQ))
		return shared->fail[V_DESTROY_CQ];
	dies(cq->serial);
	settle(&v->mutex, &v->cond, &cq->events);
	if (v->channel)
		v->channel->refcnt--;
	return gone(L_CQ, cq);
}

int ibv_get_cq_event(struct vb_comp_channel *channel, struct vb_cq **out, void **user)
{
	struct news n;

	if (take(channel->fd, &n))
		return -1;
	*out = n.object;
	*user = (*out)->cq_context;
	return 0;
}

void ibv_ack_cq_events(struct vb_cq *v, unsigned int n) { tally(v, -1, -(int)n); }

void raise_event(struct vb_context *c, void *object, uint32_t serial, int type)
{
	struct news n = {object, serial, type};

	if (write(CONTEXT(c)->async_in, &n, sizeof(n)) < 0)
		abort();
}

int ibv_get_async_event(struct vb_context *c, struct vb_async_event *e)
{
	struct news n;

	if (fails(V_ASYNC) || take(c->async_fd, &n))
		return -1;
	e->element.object = n.object;
	e->event_type = n.type;
	return 0;
}

void ibv_ack_async_event(struct vb_async_event *e)
{
	__atomic_fetch_add(&shared->acks, 1, __ATOMIC_SEQ_CST);
	tally(e->element.object, e->event_type, -1);
}

struct vb_srq *ibv_create_srq(struct vb_pd *pd, struct vb_srq_init_attr *attr)
{
	struct s_srq *s;

	(void)attr;
	if (fails(V_SRQ))
		return NULL;
	s = make(L_SRQ, sizeof(*s));
	s->srq.context = pd->context;
	s->srq.pd = pd;
	s->serial = born();
	pthread_mutex_init(&s->srq.mutex, NULL);
	pthread_cond_init(&s->srq.cond, NULL);
	return &s->srq;
}

// The limit is reached immediately.
int ibv_modify_srq(struct vb_srq *s, struct vb_srq_attr *attr, int mask)
{
	if (mask == VB_SRQ_LIMIT && attr->srq_limit)
		raise_event(s->context, s, ((struct s_srq *)s)->serial, 15);
	return shared->fail[V_MODIFY_SRQ];
}

int ibv_destroy_srq(struct vb_srq *v)
{
	struct s_srq *s = (struct s_srq *)v;

	dies(s->serial);
	settle(&v->mutex, &v->cond, &s->events);
	return gone(L_SRQ, s);
}

struct vb_qp *ibv_create_qp(struct vb_pd *pd, struct vb_qp_init_attr *attr)
{
	struct s_qp *q;

	if (fails(V_QP) || (attr->qp_type == 3 && shared->device.no_uc && (errno = EOPNOTSUPP)))
		return NULL;
	q = make(L_QP, sizeof(*q));
	q->qp.context = pd->context;
	q->qp.pd = pd;
	q->qp.send_cq = attr->send_cq;
	q->qp.recv_cq = attr->recv_cq;
	q->qp.srq = attr->srq;
	q->qp.qp_type = attr->qp_type;
	q->qp.qp_num = 0x100 + shared->numbers++ % 64; // reused soon
	q->signal_all = attr->sq_sig_all;
	q->serial = born();
	pthread_mutex_init(&q->qp.mutex, NULL);
	pthread_cond_init(&q->qp.cond, NULL);
	return &q->qp;
}

int ibv_query_qp(struct vb_qp *v, struct vb_qp_attr *attr, int mask, struct vb_qp_init_attr *init)
{
	(void)mask, (void)init;
	*attr = ((struct s_qp *)v)->attr;
	return shared->fail[V_QUERY_QP];
}

// On the transition to SQD the queue counts as drained immediately.
int ibv_modify_qp(struct vb_qp *v, struct vb_qp_attr *attr, int mask)
{
	struct s_qp *q = (struct s_qp *)v;

	if (shared->fail[V_MODIFY_QP])
		return shared->fail[V_MODIFY_QP];
	shared->modify = *attr;
	shared->modify_mask = mask;
	if (mask & 1)
		q->attr.qp_state = attr->qp_state;
	if (mask & 1 && attr->qp_state == 0)
		standin_clean(v);
	if (mask & 1 && attr->qp_state == 4)
		raise_event(v->context, v, q->serial, 5);
	return 0;
}

int ibv_destroy_qp(struct vb_qp *v)
{
	struct s_qp *q = (struct s_qp *)v;

	if (fails(V_DESTROY_QP))
		return shared->fail[V_DESTROY_QP];
	shared->overlaps += q->inside;
	standin_clean(v);
	dies(q->serial);
	settle(&v->mutex, &v->cond, &q->events);
	return gone(L_QP, q);
}

struct vb_ah *ibv_create_ah(struct vb_pd *pd, struct vb_ah_attr *attr)
{
	struct vb_ah *ah;

	if (fails(V_AH))
		return NULL;
	ah = make(L_AH, sizeof(*ah));
	ah->context = pd->context;
	ah->pd = pd;
	ah->handle = attr->grh.traffic_class;
	shared->flow_label = attr->grh.flow_label;
	return ah;
}

int ibv_destroy_ah(struct vb_ah *ah) { return gone(L_AH, ah); }

int ibv_fork_init(void)
{
	shared->forks++;
	return shared->fail[V_FORK];
}
