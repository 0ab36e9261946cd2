// Posting and polling: the part of shim.c that runs for every work request. Only shim.c
// includes it.

#ifndef IBVERBX_DATAPATH_H
#define IBVERBX_DATAPATH_H

#include "shim.h"

#include <arpa/inet.h>
#include <errno.h>
#include <string.h>

struct cq {
	struct vb_cq *cq;
	int (*poll)(struct vb_cq *, int, struct vb_wc *);
	struct vb_cq_ex *ex;  // NULL for a plain CQ
	uint32_t timestamps;  // completions of an extended CQ have one
	uint32_t single_poll; // the driver's next_poll is broken; see poll_ex
	uint32_t datagrams;   // a UD QP has used this CQ for receives; never cleared
};

struct srq {
	struct vb_srq *srq;
	int (*post)(struct vb_srq *, struct vb_recv_wr *, struct vb_recv_wr **);
	uint32_t max_sge;
};

// gate keeps a queue alive while a thread posts to it, and serializes posts. Entering costs
// one atomic operation and leaving none. A Go lock takes two.
struct gate {
	uint32_t state;
	uint64_t posts; // number of posts that went through, for tests
} __attribute__((aligned(64))); // the two sides of a QP do not share a cache line

enum { GATE_STOPPED, GATE_OPEN, GATE_BUSY };

// qp is freed when no thread can post any more, not when the library's QP is destroyed.
struct qp {
	struct gate send, recv;
	struct vb_qp *qp;
	int (*post_send)(struct vb_qp *, struct vb_send_wr *, struct vb_send_wr **);
	int (*post_recv)(struct vb_qp *, struct vb_recv_wr *, struct vb_recv_wr **);
	uint64_t max_msg;
	uint32_t max_inline;
	uint32_t legal; // a bit per opcode
	uint32_t plain; // a bit per opcode that needs only a length check
	uint32_t max_send_sge;
	uint32_t max_recv_sge;
	uint32_t datagrams;
};

// failed converts the result of a verb to an errno. Most verbs return an errno, some return -1
// and set errno, some return a negative errno.
static int failed(int rc)
{
	if (rc >= 0)
		return rc;
	if (rc == -1)
		return errno ? errno : EIO;
	return -rc;
}

static int64_t result(uint32_t taken, int why)
{
	return (int64_t)taken << 32 | (uint32_t)why;
}

static inline void pause_cpu(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

// enter returns 0 if the caller may post and must leave afterwards. It returns SHIM_STOPPED if
// the queue accepts nothing, and SHIM_BUSY if another thread has been posting for so long that
// the caller should sleep.
static inline int enter(struct gate *g)
{
	for (int tries = 0; tries < 200; tries++) {
		uint32_t seen = GATE_OPEN;

		if (__atomic_compare_exchange_n(&g->state, &seen, GATE_BUSY, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
			return 0;
		if (seen == GATE_STOPPED)
			return SHIM_STOPPED;
		pause_cpu();
	}
	return SHIM_BUSY;
}

static inline void leave(struct gate *g)
{
	__atomic_store_n(&g->state, GATE_OPEN, __ATOMIC_RELEASE);
}

int shim_set_gate(uintptr_t qp, uint32_t recv, uint32_t open)
{
	struct qp *q = (struct qp *)qp;
	struct gate *g = recv ? &q->recv : &q->send;

	if (enter(g) == SHIM_BUSY)
		return SHIM_BUSY;
	__atomic_store_n(&g->state, open ? GATE_OPEN : GATE_STOPPED, __ATOMIC_RELEASE);
	return 0;
}

uint64_t shim_posts(uintptr_t qp)
{
	struct qp *q = (struct qp *)qp;

	return __atomic_load_n(&q->send.posts, __ATOMIC_RELAXED) + __atomic_load_n(&q->recv.posts, __ATOMIC_RELAXED);
}

// check returns what is wrong with a request, or 0.
static int check(const struct qp *q, const struct flat_send *in)
{
	const int is_inline = in->flags & 8;
	uint64_t length = 0;

	if (in->opcode > 6 || !(q->legal >> in->opcode & 1))
		return SHIM_BAD_OPCODE;
	if (in->num_sge > q->max_send_sge)
		return SHIM_BAD_SGES;
	if (in->flags & 0xf0)
		return SHIM_BAD_FLAGS;
	for (unsigned int i = 0; i < in->num_sge; i++)
		length += in->sge[i].length;
	if (length > q->max_msg)
		return SHIM_TOO_LONG;
	if (is_inline && in->opcode >= 4)
		return SHIM_INLINE_OPCODE;
	if (is_inline && length > q->max_inline)
		return SHIM_INLINE_LENGTH;
	if (in->opcode > 4 && length != 8)
		return SHIM_ATOMIC_LENGTH;
	if (q->datagrams && !in->ah)
		return SHIM_NO_AH;
	return 0;
}

// plain reports whether a request is of the usual kind that needs no other check: on a
// connected QP, no atomic, not inline, at most one element, not too long. The opcode, the
// flags and the number of elements are adjacent and are read together.
static inline int plain(const struct qp *q, const struct flat_send *in)
{
	uint32_t head;

	memcpy(&head, &in->opcode, sizeof(head));
	return !(head & htonl(0xf8f8fe00)) && q->plain >> in->opcode & 1 && in->sge[0].length <= q->max_msg;
}

// build converts a flat request to the library's form. The elements stay in place, because
// they have the library's layout.
static inline void build(const struct flat_send *in, struct vb_send_wr *out)
{
	out->wr_id = in->wrid;
	out->next = out + 1;
	out->sg_list = (struct vb_sge *)in->sge;
	out->num_sge = in->num_sge;
	out->opcode = in->opcode;
	out->send_flags = in->flags;
	out->imm_data = htonl(in->imm);
	out->wr.rdma.remote_addr = in->remote_addr;
	out->wr.rdma.rkey = in->rkey;
}

// build_other adds what build leaves out: atomics and datagrams.
static void build_other(const struct qp *q, const struct flat_send *in, struct vb_send_wr *out)
{
	if (q->datagrams) {
		out->wr.ud.ah = (struct vb_ah *)in->ah;
		out->wr.ud.remote_qpn = in->remote_qpn;
		out->wr.ud.remote_qkey = in->remote_qkey;
	} else if (in->opcode > 4) {
		out->wr.atomic.compare_add = in->compare_add;
		out->wr.atomic.swap = in->swap;
		out->wr.atomic.rkey = in->rkey;
	}
}

// part builds up to limit requests and returns what is wrong with the one after the last.
static inline uint32_t part(const struct qp *q, const struct flat_send *in, uint32_t limit, struct vb_send_wr *chain, int *why)
{
	for (uint32_t i = 0; i < limit; i++) {
		build(&in[i], &chain[i]);
		if (__builtin_expect(plain(q, &in[i]), 1))
			continue;
		*why = check(q, &in[i]);
		if (*why)
			return i;
		build_other(q, &in[i], &chain[i]);
	}
	return limit;
}

// CHAIN is how many requests go to the driver at once. Longer chains are split.
enum { CHAIN = 256 };

static inline int64_t sends(const struct qp *q, const struct flat_send *in, uint32_t count)
{
	struct vb_send_wr chain[CHAIN], *bad;
	uint32_t taken = 0;
	int why = 0, err;

	while (taken < count && !why) {
		uint32_t n = part(q, &in[taken], count - taken < CHAIN ? count - taken : CHAIN, chain, &why);

		if (n == 0)
			break;
		chain[n - 1].next = NULL;
		bad = NULL;
		err = q->post_send(q->qp, chain, &bad);
		if (err)
			return result(taken + (bad ? bad - chain : 0), failed(err));
		taken += n;
	}
	return result(taken, why);
}

int64_t shim_post_send(uintptr_t qp, uintptr_t wrs, uint32_t count)
{
	struct qp *q = (struct qp *)qp;
	int64_t r = enter(&q->send);

	if (r)
		return r;
	q->send.posts++;
	r = sends(q, (struct flat_send *)wrs, count);
	leave(&q->send);
	return r;
}

// receives posts to a queue that is either a QP's own or a shared one.
static int64_t receives(const struct qp *q, const struct srq *s, uint32_t max_sge, const struct flat_recv *in, uint32_t count)
{
	struct vb_recv_wr chain[CHAIN], *bad;
	uint32_t taken = 0;
	int why = 0, err;

	while (taken < count && !why) {
		uint32_t n, limit = count - taken < CHAIN ? count - taken : CHAIN;

		for (n = 0; n < limit; n++) {
			const struct flat_recv *r = &in[taken + n];

			if (r->num_sge > max_sge) {
				why = SHIM_BAD_SGES;
				break;
			}
			chain[n].wr_id = r->wrid;
			chain[n].next = &chain[n + 1];
			chain[n].sg_list = (struct vb_sge *)r->sge;
			chain[n].num_sge = r->num_sge;
		}
		if (n == 0)
			break;
		chain[n - 1].next = NULL;
		bad = NULL;
		err = q ? q->post_recv(q->qp, chain, &bad) : s->post(s->srq, chain, &bad);
		if (err)
			return result(taken + (bad ? bad - chain : 0), failed(err));
		taken += n;
	}
	return result(taken, why);
}

int64_t shim_post_recv(uintptr_t qp, uintptr_t wrs, uint32_t count)
{
	struct qp *q = (struct qp *)qp;
	int64_t r = enter(&q->recv);

	if (r)
		return r;
	q->recv.posts++;
	r = receives(q, NULL, q->max_recv_sge, (struct flat_recv *)wrs, count);
	leave(&q->recv);
	return r;
}

int64_t shim_post_srq(uintptr_t srq, uintptr_t wrs, uint32_t count)
{
	const struct srq *s = (struct srq *)srq;

	return receives(NULL, s, s->max_sge, (struct flat_recv *)wrs, count);
}

// Opcodes of completions. Receives have their own bit. For sends below WC_READ the length is
// not reported.
enum { WC_READ = 2, WC_RECV = 1 << 7 };

// flatten converts a completion in place. Fields without a meaning become zero: all but four
// in a failed one, and those of receives in a send. Each field is read separately: the driver
// has just stored them one by one, and a load across several stores would have to wait for all
// of them. wr_id has the same place on both sides.
static inline void flatten(struct flat_wc *place, uint32_t datagrams)
{
	const struct vb_wc *in = (const struct vb_wc *)place;
	uint32_t status = in->status, opcode = in->opcode, qpn = in->qp_num, byte_len = in->byte_len;
	uint32_t vendor_err = 0, imm = 0, src_qpn = 0, flags = 0, slid = 0, sl = 0;

	if (__builtin_expect(status, 0)) {
		vendor_err = in->vendor_err;
		opcode = byte_len = 0;
	} else if (opcode & WC_RECV) {
		flags = in->wc_flags & 3;
		if (flags & 2)
			imm = ntohl(in->imm_data);
		if (datagrams) {
			src_qpn = in->src_qp;
			slid = in->slid;
			sl = in->sl;
		}
	} else if (opcode < WC_READ) {
		byte_len = 0;
	}
	place->status = status;
	place->opcode = opcode;
	place->flags = flags;
	place->sl = sl;
	place->vendor_err = vendor_err;
	place->byte_len = byte_len;
	place->imm = imm;
	place->qpn = qpn;
	place->src_qpn = src_qpn;
	place->slid = slid;
	place->pkey_index = 0; // only management datagrams have one
	place->zero = 0;
	place->timestamp = 0;
}

// flatten_ex does the same with the current completion of an extended CQ. Each field costs a
// driver call, so only meaningful fields are read.
static inline void flatten_ex(const struct cq *c, uint32_t datagrams, struct flat_wc *out)
{
	struct vb_cq_ex *ex = c->ex;
	uint32_t opcode;

	memset(out, 0, sizeof(*out));
	out->wrid = ex->wr_id;
	out->status = ex->status;
	out->qpn = ex->read_qp_num(ex);
	if (ex->status) {
		out->vendor_err = ex->read_vendor_err(ex);
		return;
	}
	out->opcode = opcode = ex->read_opcode(ex);
	if (opcode >= WC_READ)
		out->byte_len = ex->read_byte_len(ex);
	if (opcode & WC_RECV) {
		out->flags = ex->read_wc_flags(ex) & 3;
		if (out->flags & 2)
			out->imm = ntohl(ex->read_imm_data(ex));
		if (datagrams) {
			out->src_qpn = ex->read_src_qp(ex);
			out->slid = ex->read_slid(ex);
			out->sl = ex->read_sl(ex);
		}
	}
	if (c->timestamps)
		out->timestamp = ex->read_completion_ts(ex);
}

// poll_ex polls an extended CQ. Between start and end there is one current completion, and
// each next moves to another. With single_poll every completion has its own start and end:
// the Soft-RoCE driver advances both in a next that finds nothing and in the end that must
// follow it, and so skips an entry.
static int64_t poll_ex(const struct cq *c, uint32_t datagrams, struct flat_wc *dst, uint32_t count)
{
	struct vb_poll_cq_attr attr = {0};
	struct vb_cq_ex *ex = c->ex;
	uint32_t n = 0;
	int err;

	do {
		err = ex->start_poll(ex, &attr);
		if (err && n == 0 && err != ENOENT)
			return -failed(err);
		if (err)
			break;
		do
			flatten_ex(c, datagrams, &dst[n++]);
		while (n < count && !c->single_poll && !ex->next_poll(ex));
		ex->end_poll(ex);
	} while (c->single_poll && n < count);
	return n;
}

int64_t shim_poll(uintptr_t cq, uintptr_t dst, uint32_t count)
{
	const struct cq *c = (struct cq *)cq;
	const uint32_t datagrams = __atomic_load_n(&c->datagrams, __ATOMIC_RELAXED);
	struct flat_wc *out = (struct flat_wc *)dst;
	int n;

	if (c->ex)
		return poll_ex(c, datagrams, out, count);
	errno = 0;
	n = c->poll(c->cq, count, (struct vb_wc *)out);
	for (int i = 0; i < n; i++)
		flatten(&out[i], datagrams);
	return n < 0 ? -failed(n) : n;
}

#endif
