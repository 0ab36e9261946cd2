// A program that connects by address, in the ways that programs of the distribution do not: each mode checks one sequence or one error. Both
// sides are in this process, without QPs, unless the mode says otherwise. It exits with 0 if all is well.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
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

static void start(int backlog)
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

static struct rdma_cm_id *connected(struct rdma_cm_id **passive)
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

// first_unprivileged returns the first port that any user may bind.
static int first_unprivileged(void)
{
	int port = 1024;
	FILE *f = fopen("/proc/sys/net/ipv4/ip_unprivileged_port_start", "r");
	if (f && fscanf(f, "%d", &port) != 1)
		port = 1024;
	if (f)
		fclose(f);
	return geteuid() ? port : 0;
}

// The errors of calls and events.
static void errors(void)
{
	start(0);
	struct rdma_cm_id *id = new_id(here), *passive;
	CHECK(rdma_bind_addr(id, (struct sockaddr *)&service) && errno == EADDRINUSE, "bind to a used address");
	struct sockaddr_in other = {.sin_family = AF_INET, .sin_addr.s_addr = inet_addr("203.0.113.7")};
	CHECK(rdma_bind_addr(id, (struct sockaddr *)&other) && errno == EADDRNOTAVAIL, "bind to another host's address");
	other.sin_port = htons(1);
	other.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	int err = rdma_bind_addr(id, (struct sockaddr *)&other) ? errno : 0;
	CHECK(err == (first_unprivileged() > 1 ? EACCES : 0), "bind to a privileged port");
	destroy(id);
	id = new_id(here);
	CHECK(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&service, 2000), "resolve");
	want(here, RDMA_CM_EVENT_ADDR_RESOLVED, 0); // librdmacm crashes if a program does not wait for it
	CHECK(request(id, NULL, 0) && errno == EINVAL, "connect before the route");
	destroy(id);
	id = routed();
	CHECK(rdma_resolve_route(id, 2000) && errno == EINVAL, "a second route");
	CHECK(request(id, service.sin_zero, 57) && errno == EINVAL, "57 bytes of private data");
	char data[56] = "hello";
	CHECK(!request(id, data, sizeof(data)), "56 bytes of private data");
	struct rdma_cm_event *e = get(there, RDMA_CM_EVENT_CONNECT_REQUEST, 0);
	CHECK(e->param.conn.private_data_len == 56 && !memcmp(e->param.conn.private_data, data, 56) && e->param.conn.retry_count == 7, "the request");
	passive = e->id;
	rdma_ack_cm_event(e);
	CHECK(!rdma_reject(passive, "no", 2), "reject");
	destroy(passive);
	e = get(here, RDMA_CM_EVENT_REJECTED, 28);
	CHECK(e->param.conn.private_data_len == 148 && !strcmp(e->param.conn.private_data, "no"), "148 bytes of a rejection");
	rdma_ack_cm_event(e);
	destroy(id);
	id = routed();
	destroy(listener);
	CHECK(!request(id, NULL, 0), "connect to nobody");
	want(here, RDMA_CM_EVENT_REJECTED, 8);
	destroy(id);
	CHECK(rdma_create_id(here, &id, NULL, RDMA_PS_IB), "an unsupported port space");
}

static void backlog(void)
{
	start(2);
	struct rdma_cm_id *id[3];
	for (int i = 0; i < 3; i++) {
		id[i] = routed();
		CHECK(!request(id[i], NULL, 0), "connect");
		if (i < 2) // until it waits there
			continue;
		want(here, RDMA_CM_EVENT_REJECTED, 3);
	}
	for (int i = 0; i < 2; i++) {
		struct rdma_cm_event *e = get(there, RDMA_CM_EVENT_CONNECT_REQUEST, 0);
		struct rdma_cm_id *passive = e->id;
		rdma_ack_cm_event(e);
		destroy(passive); // unanswered
		want(here, RDMA_CM_EVENT_REJECTED, 28);
	}
	for (int i = 0; i < 3; i++)
		destroy(id[i]);
	destroy(listener);
}

static void migrate(void)
{
	start(0);
	struct rdma_cm_id *passive, *id = connected(&passive);
	struct rdma_event_channel *other = channel();
	CHECK(!rdma_disconnect(id), "disconnect");
	want(here, RDMA_CM_EVENT_DISCONNECTED, 0);
	struct pollfd p = {.fd = there->fd, .events = POLLIN};
	CHECK(poll(&p, 1, 30000) == 1, "the event waits");
	CHECK(!rdma_migrate_id(passive, other), "migrate");
	CHECK(poll(&p, 1, 0) == 0, "the old channel is empty");
	want(other, RDMA_CM_EVENT_DISCONNECTED, 0);
	CHECK(!rdma_disconnect(passive) && !rdma_disconnect(id), "disconnect again");
	want(other, RDMA_CM_EVENT_TIMEWAIT_EXIT, 0);
	destroy(passive);
	destroy(id);
	rdma_destroy_event_channel(other);
}

// nonblocking waits with edge triggers: each event is an edge of its own.
static void nonblocking(void)
{
	start(0);
	CHECK(!fcntl(there->fd, F_SETFL, O_NONBLOCK), "fcntl");
	struct rdma_cm_event *e;
	CHECK(rdma_get_cm_event(there, &e) && errno == EAGAIN, "no event");
	int epoll = epoll_create1(0);
	struct epoll_event ev = {.events = EPOLLIN | EPOLLET};
	CHECK(!epoll_ctl(epoll, EPOLL_CTL_ADD, there->fd, &ev), "epoll_ctl");
	struct rdma_cm_id *id[3];
	for (int i = 0; i < 3; i++) {
		id[i] = routed();
		CHECK(!request(id[i], NULL, 0), "connect");
		CHECK(epoll_wait(epoll, &ev, 1, 30000) == 1, "an edge for each event, also if earlier ones wait");
	}
	for (int i = 0; i < 3; i++) {
		CHECK(!rdma_get_cm_event(there, &e), "take");
		rdma_ack_cm_event(e);
	}
	CHECK(rdma_get_cm_event(there, &e) && errno == EAGAIN, "no more events");
	close(epoll);
}

// closing: a closed channel takes its ids along, and the peer hears it.
static void closing(void)
{
	start(0);
	struct rdma_cm_id *passive;
	connected(&passive);
	rdma_destroy_event_channel(there);
	want(here, RDMA_CM_EVENT_DISCONNECTED, 0);
}

// forking: the child gets ENODEV, and closing what it inherited changes nothing for the parent.
static void forking(void)
{
	start(0);
	struct rdma_cm_id *passive, *id = connected(&passive);
	pid_t child = fork();
	CHECK(child >= 0, "fork");
	if (!child) {
		struct rdma_cm_event *e;
		struct rdma_cm_id *own;
		CHECK(rdma_create_id(here, &own, NULL, RDMA_PS_TCP) && errno == ENODEV, "an id in the child");
		CHECK(rdma_get_cm_event(here, &e) && errno == ENODEV, "an event in the child");
		close(here->fd);
		int fd = open("/dev/null", O_WRONLY);
		CHECK(fd == here->fd && write(fd, "12345678", 8) == 8, "a file with the number of a channel");
		for (int i = 3; i < 256; i++)
			close(i);
		_exit(0);
	}
	int status;
	CHECK(waitpid(child, &status, 0) == child && !status, "the child failed");
	child = vfork();
	if (!child) {
		close(here->fd);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && !status, "the second child failed");
	CHECK(!rdma_disconnect(id), "disconnect");
	want(here, RDMA_CM_EVENT_DISCONNECTED, 0);
	want(there, RDMA_CM_EVENT_DISCONNECTED, 0);
}

// replaced: a program replaces the descriptor of a channel with a file. The channel is closed, and no event reaches the file.
static void replaced(void)
{
	start(0);
	for (int mode = 0; mode < 4; mode++) {
		struct rdma_event_channel *keep = here;
		struct rdma_cm_id *passive, *id = connected(&passive);
		FILE *file = tmpfile();
		CHECK(file, "a file");
		int from = fileno(file), to = keep->fd;
		if (mode == 0)
			CHECK(dup2(from, to) == to, "dup2");
		else if (mode == 1)
			CHECK(dup3(from, to, O_CLOEXEC) == to, "dup3");
		else if (mode == 2)
			CHECK(!close_range((unsigned int)to, (unsigned int)to, 0) && fcntl(from, F_DUPFD, to) == to, "close_range");
		else // unnoticed
			CHECK(syscall(SYS_dup3, from, to, 0) == to, "the system call");
		if (mode < 3) {
			want(there, RDMA_CM_EVENT_DISCONNECTED, 0);
			CHECK(write(to, "12345678", 8) == 8, "write to the file");
		} else {
			CHECK(!rdma_disconnect(passive), "disconnect");
			want(there, RDMA_CM_EVENT_DISCONNECTED, 0);
		}
		CHECK(lseek(from, 0, SEEK_END) == (mode < 3 ? 8 : 0), "the file has %ld bytes", (long)lseek(from, 0, SEEK_END));
		(void)id; // gone with its channel
		here = channel();
	}
}

static int descriptors(void)
{
	int n = 0;
	DIR *d = opendir("/proc/self/fd");
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

// many connects often. Descriptors and numbers of ids do not leak.
static void many(void)
{
	start(0);
	struct rdma_cm_id *passive, *id = connected(&passive);
	destroy(id);
	want(there, RDMA_CM_EVENT_DISCONNECTED, 0);
	destroy(passive);
	int before = descriptors();
	for (int i = 0; i < 2000; i++) {
		id = connected(&passive);
		if (i % 2) {
			CHECK(!rdma_disconnect(id), "disconnect");
			want(here, RDMA_CM_EVENT_DISCONNECTED, 0);
		}
		destroy(id);
		want(there, RDMA_CM_EVENT_DISCONNECTED, 0);
		destroy(passive);
	}
	CHECK(descriptors() <= before + 4, "%d descriptors, %d before", descriptors(), before);
}

static void *waiter(void *result)
{
	struct rdma_cm_event *e;
	*(int *)result = rdma_get_cm_event(here, &e);
	return NULL;
}

// blocking: a thread that waits for an event gets it from another thread.
static void blocking(void)
{
	start(0);
	pthread_t thread;
	int result = -1;
	struct rdma_cm_id *id = new_id(here);
	CHECK(!pthread_create(&thread, NULL, waiter, &result), "thread");
	usleep(10000);
	CHECK(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&service, 2000), "resolve");
	pthread_join(thread, NULL);
	CHECK(!result, "the thread got no event");
}

// server accepts connections at a port until it is killed. client connects, kills the server and waits for the end.
static void server(const char *port)
{
	here = there = channel();
	listener = new_id(there);
	service.sin_port = htons((uint16_t)atoi(port));
	CHECK(!rdma_bind_addr(listener, (struct sockaddr *)&service) && !listener->verbs && !rdma_listen(listener, 0), "listen at a wildcard");
	for (;;) {
		struct rdma_cm_event *e;
		CHECK(!rdma_get_cm_event(there, &e), "event");
		if (e->event == RDMA_CM_EVENT_CONNECT_REQUEST)
			accept_it(e->id);
		rdma_ack_cm_event(e);
	}
}

static void client(const char *port, const char *pid)
{
	here = channel();
	service.sin_port = htons((uint16_t)atoi(port));
	service.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
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
	static const struct {
		const char *name;
		void (*run)(void);
	} modes[] = {{"errors", errors}, {"backlog", backlog}, {"migrate", migrate}, {"nonblocking", nonblocking}, {"closing", closing}, {"forking", forking}, {"replaced", replaced}, {"many", many}, {"blocking", blocking}};
	if (argc == 3)
		server(argv[2]);
	if (argc == 4) {
		client(argv[2], argv[3]);
		return 0;
	}
	for (size_t i = 0; argc > 1 && i < sizeof(modes) / sizeof(*modes); i++)
		if (!strcmp(argv[1], modes[i].name)) {
			modes[i].run();
			return 0;
		}
	return 2;
}
