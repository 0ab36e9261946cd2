// The queues of the stand-in.

#include "standin.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void linger(void)
{
	for (uint64_t i = 0; i < shared->linger; i++)
		__asm__ volatile("" ::: "memory");
}

// visit begins an access to a CQ, and counts it if another one is under way. Without linger, which
// gives accesses the time to meet, nothing is counted.
static void visit(struct s_cq *cq)
{
	if (!shared->linger)
		return;
	__atomic_fetch_add(&shared->cq.visits, 1, __ATOMIC_SEQ_CST);
	if (__atomic_fetch_add(&cq->inside, 1, __ATOMIC_SEQ_CST))
		__atomic_fetch_add(&shared->cq.overlaps, 1, __ATOMIC_SEQ_CST);
	linger();
}

static void leave(struct s_cq *cq)
{
	if (shared->linger)
		__atomic_fetch_sub(&cq->inside, 1, __ATOMIC_SEQ_CST);
}

// standin_clean looks at the CQs of a QP that is reset or destroyed, as hardware drivers do.
void standin_clean(struct vb_qp *v)
{
	visit((struct s_cq *)v->send_cq);
	leave((struct s_cq *)v->send_cq);
	visit((struct s_cq *)v->recv_cq);
	leave((struct s_cq *)v->recv_cq);
}

int standin_arm(struct vb_cq *v, int solicited_only)
{
	(void)solicited_only;
	visit((struct s_cq *)v);
	((struct s_cq *)v)->armed = 1;
	leave((struct s_cq *)v);
	if (shared->cq.overrun)
		raise_event(v->context, v, ((struct s_cq *)v)->serial, 0);
	return shared->fail[V_ARM];
}

// complete puts a completion into a CQ, and an event into its channel if it is armed.
static void complete(struct vb_cq *v, const struct vb_wc *wc)
{
	struct s_cq *cq = (struct s_cq *)v;

	if (cq->tail - cq->head < RING)
		cq->ring[cq->tail++ % RING] = *wc;
	if (cq->armed && v->channel) {
		struct news n = {v, cq->serial, -1};

		cq->armed = 0;
		if (write(((struct s_channel *)v->channel)->in, &n, sizeof(n)) < 0)
			abort();
	}
}

// record keeps a copy of a request for the test.
static void record(const struct vb_send_wr *wr, int type, uint64_t nth)
{
	struct seen *s = &shared->seen[(shared->posted + nth) % SEEN];

	memset(s, 0, sizeof(*s));
	s->wr_id = wr->wr_id;
	s->opcode = wr->opcode;
	s->flags = wr->send_flags;
	s->imm = wr->imm_data;
	s->num_sge = wr->num_sge;
	for (int i = 0; i < wr->num_sge; i++)
		s->sge[i] = wr->sg_list[i];
	if (type == 4) {
		s->ah = wr->wr.ud.ah ? wr->wr.ud.ah->handle : 0;
		s->qpn = wr->wr.ud.remote_qpn;
		s->qkey = wr->wr.ud.remote_qkey;
	} else if (wr->opcode > 4) {
		s->remote_addr = wr->wr.atomic.remote_addr;
		s->rkey = wr->wr.atomic.rkey;
		s->compare_add = wr->wr.atomic.compare_add;
		s->swap = wr->wr.atomic.swap;
	} else {
		s->remote_addr = wr->wr.rdma.remote_addr;
		s->rkey = wr->wr.rdma.rkey;
	}
}

// finish completes a request at once.
static void finish(struct vb_qp *v, const struct vb_send_wr *wr)
{
	static const uint8_t done[] = {1, 1, 0, 0, 2, 3, 4};
	struct vb_wc wc = {
		.wr_id = wr->wr_id,
		.status = shared->status,
		.opcode = shared->opcode ? shared->opcode - 1 : done[wr->opcode],
		.vendor_err = 0x77,
		.byte_len = 1234,
		.imm_data = wr->imm_data,
		.qp_num = v->qp_num,
		.src_qp = 0x99,
		.wc_flags = 1 << 2 | 2 | 1,
		.pkey_index = 5,
		.slid = 6,
		.sl = 7,
	};

	complete(v->send_cq, &wc);
}

static int post_send(struct vb_qp *v, struct vb_send_wr *wr, struct vb_send_wr **bad)
{
	const int signal_all = ((struct s_qp *)v)->signal_all, keep = shared->record;
	uint64_t left = shared->room, taken = 0;

	shared->doorbells++;
	if (shared->idle)
		return 0;
	for (; wr; wr = wr->next, taken++) {
		if (left-- == 0) {
			*bad = wr;
			break;
		}
		if (keep)
			record(wr, v->qp_type, taken);
		if (wr->send_flags & 2 || signal_all)
			finish(v, wr);
	}
	shared->posted += taken;
	return wr ? shared->fail[V_POST] : 0;
}

int standin_post_send(struct vb_qp *v, struct vb_send_wr *wr, struct vb_send_wr **bad)
{
	struct s_qp *q = (struct s_qp *)v;
	int err;

	if (!shared->linger)
		return post_send(v, wr, bad);
	if (__atomic_fetch_add(&q->inside, 1, __ATOMIC_SEQ_CST))
		__atomic_fetch_add(&shared->overlaps, 1, __ATOMIC_SEQ_CST);
	linger();
	err = post_send(v, wr, bad);
	__atomic_fetch_sub(&q->inside, 1, __ATOMIC_SEQ_CST);
	return err;
}

static int receives(struct vb_recv_wr *wr, struct vb_recv_wr **bad)
{
	uint64_t left = shared->room;

	shared->doorbells++;
	for (; wr; wr = wr->next) {
		if (left-- == 0) {
			*bad = wr;
			return shared->fail[V_POST];
		}
		if (shared->record) {
			struct seen *s = &shared->seen[shared->received % SEEN];

			memset(s, 0, sizeof(*s));
			s->wr_id = wr->wr_id;
			s->num_sge = wr->num_sge;
			for (int i = 0; i < wr->num_sge; i++)
				s->sge[i] = wr->sg_list[i];
		}
		shared->received++;
	}
	return 0;
}

int standin_post_recv(struct vb_qp *v, struct vb_recv_wr *wr, struct vb_recv_wr **bad)
{
	(void)v;
	return receives(wr, bad);
}

int standin_post_srq(struct vb_srq *v, struct vb_recv_wr *wr, struct vb_recv_wr **bad)
{
	(void)v;
	return receives(wr, bad);
}

int standin_poll(struct vb_cq *v, int n, struct vb_wc *wc)
{
	struct s_cq *cq = (struct s_cq *)v;
	int i;

	shared->polls++;
	if (shared->fail[V_POLL])
		return -shared->fail[V_POLL];
	if (shared->endless) {
		for (i = 0; i < n; i++) {
			wc[i].wr_id = i;
			wc[i].status = 0;
			wc[i].opcode = 1;
			wc[i].byte_len = 8;
			wc[i].qp_num = 0x100;
			wc[i].wc_flags = 0;
		}
		return n;
	}
	for (i = 0; i < n && cq->head != cq->tail; i++)
		wc[i] = cq->ring[cq->head++ % RING];
	return i;
}

// The extended CQ hands out one completion at a time.
static void present(struct s_cq *cq)
{
	const struct vb_wc *wc = &cq->ring[cq->head % RING];

	cq->ex.wr_id = wc->wr_id;
	cq->ex.status = wc->status;
}

static int start_poll(struct vb_cq_ex *ex, struct vb_poll_cq_attr *attr)
{
	struct s_cq *cq = (struct s_cq *)ex;

	shared->polls++;
	if (attr->comp_mask || cq->polling)
		return EINVAL;
	if (shared->fail[V_POLL])
		return shared->fail[V_POLL];
	visit(cq);
	if (cq->head == cq->tail && !shared->endless) {
		leave(cq);
		return ENOENT;
	}
	cq->polling = 1;
	present(cq);
	return 0;
}

static int next_poll(struct vb_cq_ex *ex)
{
	struct s_cq *cq = (struct s_cq *)ex;

	if (shared->endless)
		return 0;
	if (cq->polling != 1 || cq->head + 1 == cq->tail) {
		cq->polling = 2; // the last one was delivered
		cq->head += shared->cq.steps;
		return ENOENT;
	}
	cq->head++;
	present(cq);
	return 0;
}

static void end_poll(struct vb_cq_ex *ex)
{
	struct s_cq *cq = (struct s_cq *)ex;

	if (!cq->polling)
		abort();
	cq->head += !shared->endless;
	cq->polling = 0;
	leave(cq);
}

#define NOW (&((struct s_cq *)ex)->ring[((struct s_cq *)ex)->head % RING])

static int read_opcode(struct vb_cq_ex *ex) { return NOW->opcode; }
static uint32_t read_vendor_err(struct vb_cq_ex *ex) { return NOW->vendor_err; }
static uint32_t read_byte_len(struct vb_cq_ex *ex) { return NOW->byte_len; }
static uint32_t read_imm_data(struct vb_cq_ex *ex) { return NOW->imm_data; }
static uint32_t read_qp_num(struct vb_cq_ex *ex) { return NOW->qp_num; }
static uint32_t read_src_qp(struct vb_cq_ex *ex) { return NOW->src_qp; }
static unsigned int read_wc_flags(struct vb_cq_ex *ex) { return NOW->wc_flags; }
static uint32_t read_slid(struct vb_cq_ex *ex) { return NOW->slid; }
static uint8_t read_sl(struct vb_cq_ex *ex) { return NOW->sl; }
static uint64_t read_completion_ts(struct vb_cq_ex *ex) { return 1000 + ((struct s_cq *)ex)->head; }

struct vb_cq_ex *standin_create_cq_ex(struct vb_context *c, struct vb_cq_init_attr_ex *attr)
{
	struct vb_cq_ex *ex;

	shared->cq.flags[shared->cq.tries++ % TRIES] = attr->flags | (uint64_t)attr->comp_mask << 32;
	if (shared->cq.none || (attr->comp_mask && shared->cq.no_flags)) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	ex = (struct vb_cq_ex *)ibv_create_cq(c, attr->cqe, attr->cq_context, attr->channel, attr->comp_vector);
	if (!ex)
		return NULL;
	shared->extended_calls++;
	shared->cq.made++;
	ex->start_poll = start_poll;
	ex->next_poll = next_poll;
	ex->end_poll = end_poll;
	ex->read_opcode = read_opcode;
	ex->read_vendor_err = read_vendor_err;
	ex->read_byte_len = read_byte_len;
	ex->read_imm_data = read_imm_data;
	ex->read_qp_num = read_qp_num;
	ex->read_src_qp = read_src_qp;
	ex->read_wc_flags = read_wc_flags;
	ex->read_slid = read_slid;
	ex->read_sl = read_sl;
	if (attr->wc_flags & VB_CQ_EX_TIMESTAMP)
		ex->read_completion_ts = read_completion_ts;
	return ex;
}
