// Two processes that connect by address. One of them may be killed at any moment.
//   pair server PORT       accepts connections, and destroys those that have ended
//   pair kill PORT PID     connects, kills the server and waits for the end
//   pair hammer PORT       connects and disconnects until no process serves the port
//   pair count PORT        prints the number of the server's connections
#include "connect.h"

// answer handles a request: a question for the number of connections, or a connection.
static int answer(struct rdma_cm_event *e, int live)
{
	struct rdma_conn_param p = {.qp_num = 2};
	if (!strcmp(e->param.conn.private_data, "count"))
		rdma_reject(e->id, &live, sizeof(live));
	else if (!rdma_accept(e->id, &p)) // it fails if the peer is gone
		return live + 1;
	struct rdma_cm_id *id = e->id;
	rdma_ack_cm_event(e);
	destroy(id);
	return -1;
}

static void server(void)
{
	int live = 0;
	listener = new_id(there);
	CHECK(!rdma_bind_addr(listener, (struct sockaddr *)&service) && !listener->verbs && !rdma_listen(listener, 0), "listen at a wildcard");
	for (;;) {
		struct rdma_cm_event *e;
		CHECK(!rdma_get_cm_event(there, &e), "event");
		struct rdma_cm_id *id = e->id;
		enum rdma_cm_event_type type = e->event;
		if (type == RDMA_CM_EVENT_CONNECT_REQUEST) {
			int n = answer(e, live);
			if (n < 0)
				continue;
			live = n;
		}
		rdma_ack_cm_event(e);
		if (type == RDMA_CM_EVENT_DISCONNECTED || type == RDMA_CM_EVENT_REJECTED || type == RDMA_CM_EVENT_UNREACHABLE) {
			destroy(id);
			live--;
		}
	}
}

// take takes an event of one of two types, and exits if the server is gone.
static struct rdma_cm_event *take(enum rdma_cm_event_type a, enum rdma_cm_event_type b)
{
	struct rdma_cm_event *e;
	struct pollfd p = {.fd = here->fd, .events = POLLIN};
	CHECK(poll(&p, 1, 30000) == 1, "no event, want %s", rdma_event_str(a));
	CHECK(!rdma_get_cm_event(here, &e), "take an event");
	if (e->event == RDMA_CM_EVENT_REJECTED && e->status == 8)
		exit(0);
	CHECK(e->event == a || e->event == b, "%s with status %d, want %s", rdma_event_str(e->event), e->status, rdma_event_str(a));
	return e;
}

static void hammer(void)
{
	for (;;) {
		struct rdma_cm_id *id = routed();
		CHECK(!request(id, NULL, 0), "connect");
		struct rdma_cm_event *e = take(RDMA_CM_EVENT_CONNECT_RESPONSE, RDMA_CM_EVENT_REJECTED); // rejected by a server that is killed
		bool over = e->event == RDMA_CM_EVENT_REJECTED;
		rdma_ack_cm_event(e);
		if (!over && !rdma_establish(id)) {
			rdma_disconnect(id);
			rdma_ack_cm_event(take(RDMA_CM_EVENT_DISCONNECTED, RDMA_CM_EVENT_DISCONNECTED));
		}
		destroy(id);
	}
}

static void count(void)
{
	struct rdma_cm_id *id = routed();
	CHECK(!request(id, "count", sizeof("count")), "connect");
	struct rdma_cm_event *e = get(here, RDMA_CM_EVENT_REJECTED, 28);
	int live;
	memcpy(&live, e->param.conn.private_data, sizeof(live));
	printf("%d\n", live);
	rdma_ack_cm_event(e);
	destroy(id);
}

static void killer(const char *pid)
{
	struct rdma_cm_id *id = routed();
	CHECK(!request(id, NULL, 0), "connect");
	want(here, RDMA_CM_EVENT_CONNECT_RESPONSE, 0);
	CHECK(!rdma_establish(id), "establish");
	CHECK(!kill(atoi(pid), SIGKILL), "kill");
	want(here, RDMA_CM_EVENT_DISCONNECTED, 0);
	destroy(id);
}

int main(int argc, char **argv)
{
	CHECK(argc >= 3, "usage");
	here = there = channel();
	service.sin_port = htons((uint16_t)atoi(argv[2]));
	if (!strcmp(argv[1], "server"))
		server();
	service.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (!strcmp(argv[1], "hammer"))
		hammer();
	else if (!strcmp(argv[1], "count"))
		count();
	else
		killer(argv[3]);
	return 0;
}
