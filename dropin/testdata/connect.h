// What programs that connect by address share: event channels of both sides, and calls that must succeed.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(ok, ...) \
	do { \
		if (!(ok)) { \
			fprintf(stderr, "line %d: %s: errno %d: ", __LINE__, #ok, errno); \
			fprintf(stderr, __VA_ARGS__); \
			fprintf(stderr, "\n"); \
			exit(1); \
		} \
	} while (0)

static struct rdma_event_channel *here, *there; // of the active and the passive side
static struct rdma_cm_id *listener;
static struct sockaddr_in service = {.sin_family = AF_INET};

static struct rdma_event_channel *channel(void)
{
	struct rdma_event_channel *c = rdma_create_event_channel();
	CHECK(c, "create a channel");
	return c;
}

static struct rdma_cm_id *new_id(struct rdma_event_channel *c)
{
	struct rdma_cm_id *id;
	CHECK(!rdma_create_id(c, &id, NULL, RDMA_PS_TCP), "create an id");
	return id;
}

// get takes an event that must have a type and a status.
static struct rdma_cm_event *get(struct rdma_event_channel *c, enum rdma_cm_event_type type, int status)
{
	struct rdma_cm_event *e;
	struct pollfd p = {.fd = c->fd, .events = POLLIN};
	CHECK(poll(&p, 1, 30000) == 1, "no event, want %s", rdma_event_str(type));
	CHECK(!rdma_get_cm_event(c, &e), "take an event");
	CHECK(e->event == type && e->status == status, "%s with status %d, want %s with %d", rdma_event_str(e->event), e->status, rdma_event_str(type), status);
	return e;
}

static void want(struct rdma_event_channel *c, enum rdma_cm_event_type type, int status) { rdma_ack_cm_event(get(c, type, status)); }

__attribute__((unused)) static void start(int backlog)
{
	here = channel();
	there = channel();
	listener = new_id(there);
	service.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	CHECK(!rdma_bind_addr(listener, (struct sockaddr *)&service), "bind");
	service.sin_port = rdma_get_src_port(listener);
	CHECK(service.sin_port && listener->verbs, "a bound id has a port and a device");
	CHECK(!rdma_listen(listener, backlog), "listen");
}

static struct rdma_cm_id *routed(void)
{
	struct rdma_cm_id *id = new_id(here);
	CHECK(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&service, 2000), "resolve");
	want(here, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
	CHECK(!rdma_resolve_route(id, 2000), "route");
	want(here, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
	CHECK(id->verbs && id->route.num_paths == 1 && rdma_get_src_port(id), "a routed id has a device, a path and a port");
	return id;
}

static int request(struct rdma_cm_id *id, const void *data, uint8_t length)
{
	struct rdma_conn_param p = {.private_data = data, .private_data_len = length, .qp_num = 1, .retry_count = 15};
	return rdma_connect(id, &p);
}

// requested connects an id and returns the passive one.
static struct rdma_cm_id *requested(struct rdma_cm_id *id)
{
	CHECK(!request(id, NULL, 0), "connect");
	struct rdma_cm_event *e = get(there, RDMA_CM_EVENT_CONNECT_REQUEST, 0);
	struct rdma_cm_id *passive = e->id;
	CHECK(e->listen_id == listener, "the listener of a request");
	rdma_ack_cm_event(e);
	return passive;
}

static void accept_it(struct rdma_cm_id *passive)
{
	struct rdma_conn_param p = {.qp_num = 2};
	CHECK(!rdma_accept(passive, &p), "accept");
}

__attribute__((unused)) static struct rdma_cm_id *connected(struct rdma_cm_id **passive)
{
	struct rdma_cm_id *id = routed();
	*passive = requested(id);
	accept_it(*passive);
	want(here, RDMA_CM_EVENT_CONNECT_RESPONSE, 0);
	CHECK(!rdma_establish(id), "establish");
	want(there, RDMA_CM_EVENT_ESTABLISHED, 0);
	return id;
}

static void destroy(struct rdma_cm_id *id) { CHECK(!rdma_destroy_id(id), "destroy"); }
