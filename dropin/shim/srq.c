// Shared receive queues.
#define _GNU_SOURCE
#include "shim.h"

static struct ibv_srq *new_srq(struct ibv_pd *pd, void *srq_context, struct ibv_srq_attr *attr)
{
	struct srq *s = calloc(1, sizeof(*s));
	if (!s)
		return fail(ENOMEM);
	// The limit is armed with ibv_modify_srq. ibv_create_srq(3) ignores it.
	int err = core.create_srq(pd->handle, (int32_t)attr->max_wr, (int32_t)attr->max_sge, 0, (uintptr_t)&s->base, &s->base.handle);
	if (err) {
		free(s);
		return fail(err);
	}
	s->base.context = pd->context;
	s->base.srq_context = srq_context;
	s->base.pd = pd;
	s->attr = (struct ibv_srq_attr){.max_wr = attr->max_wr, .max_sge = attr->max_sge};
	pthread_mutex_init(&s->base.mutex, NULL);
	pthread_cond_init(&s->base.cond, NULL);
	return &s->base;
}

struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *init)
{
	return new_srq(pd, init->srq_context, &init->attr);
}

static struct ibv_srq *create_srq_ex(struct ibv_context *base, struct ibv_srq_init_attr_ex *init)
{
	(void)base;
	if (init->comp_mask & IBV_SRQ_INIT_ATTR_TYPE && init->srq_type != IBV_SRQT_BASIC)
		return fail(EOPNOTSUPP);
	if (!(init->comp_mask & IBV_SRQ_INIT_ATTR_PD))
		return fail(EINVAL);
	return new_srq(init->pd, init->srq_context, &init->attr);
}

int ibv_modify_srq(struct ibv_srq *base, struct ibv_srq_attr *attr, int mask)
{
	if (mask & IBV_SRQ_MAX_WR)
		return EOPNOTSUPP;
	return mask & IBV_SRQ_LIMIT ? core.limit_srq(base->handle, (int32_t)attr->srq_limit) : 0;
}

int ibv_query_srq(struct ibv_srq *base, struct ibv_srq_attr *attr)
{
	int32_t limit = 0;
	int err = ibx_forked ? ENODEV : core.query_srq(base->handle, &limit);
	*attr = to_srq(base)->attr;
	attr->srq_limit = (uint32_t)limit; // it is 0 from the event on
	return err;
}

int ibv_destroy_srq(struct ibv_srq *base)
{
	struct ibx_delivered taken;
	int err = core.destroy_srq(base->handle, &taken);
	if (err)
		return err;
	ibx_await_acks(&base->mutex, &base->cond, &base->events_completed, taken.async);
	free(to_srq(base));
	return 0;
}

static int get_srq_num(struct ibv_srq *srq, uint32_t *num) { (void)srq, (void)num; return EOPNOTSUPP; }

void ibx_srq_ops(struct verbs_context *v)
{
	v->create_srq_ex = create_srq_ex;
	v->get_srq_num = get_srq_num;
}
