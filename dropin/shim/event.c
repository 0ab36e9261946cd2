// Asynchronous events.
#define _GNU_SOURCE
#include "shim.h"

int ibv_get_async_event(struct ibv_context *base, struct ibv_async_event *event)
{
	struct ibx_event e;
	int err;
	do { // a token without an event belonged to an object that is gone
		if (ibx_forked) {
			errno = ENODEV;
			return -1;
		}
		if (ibx_take(base->async_fd))
			return -1;
		err = core.next_event(ctx_handle(base), &e);
	} while (err == EAGAIN);
	if (err) {
		errno = err;
		return -1;
	}
	memset(event, 0, sizeof(*event));
	event->event_type = e.type;
	if (e.cookie)
		event->element.cq = (struct ibv_cq *)(uintptr_t)e.cookie;
	else
		event->element.port_num = (int)e.port;
	return 0;
}

static void ack(pthread_mutex_t *mutex, pthread_cond_t *cond, uint32_t *acked)
{
	pthread_mutex_lock(mutex);
	++*acked;
	pthread_cond_signal(cond);
	pthread_mutex_unlock(mutex);
}

void ibv_ack_async_event(struct ibv_async_event *event)
{
	switch (event->event_type) {
	case IBV_EVENT_CQ_ERR: {
		struct ibv_cq *cq = event->element.cq;
		ack(&cq->mutex, &cq->cond, &cq->async_events_completed);
		return;
	}
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
	case IBV_EVENT_COMM_EST:
	case IBV_EVENT_SQ_DRAINED:
	case IBV_EVENT_PATH_MIG:
	case IBV_EVENT_PATH_MIG_ERR:
	case IBV_EVENT_QP_LAST_WQE_REACHED: {
		struct ibv_qp *qp = event->element.qp;
		ack(&qp->mutex, &qp->cond, &qp->events_completed);
		return;
	}
	case IBV_EVENT_SRQ_ERR:
	case IBV_EVENT_SRQ_LIMIT_REACHED: {
		struct ibv_srq *srq = event->element.srq;
		ack(&srq->mutex, &srq->cond, &srq->events_completed);
		return;
	}
	default: // events of the device and its port need no acknowledgement
		return;
	}
}
