// A program that connects by address, in the ways that programs of the distribution do not: each mode checks one sequence or one error. Both
// sides are in this process, without QPs, unless the mode says otherwise. It exits with 0 if all is well.
#include "connect.h"

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

// resident returns the memory of this process in KiB.
static long resident(void)
{
	long pages = 0;
	FILE *f = fopen("/proc/self/statm", "r");
	CHECK(f && fscanf(f, "%*d %ld", &pages) == 1, "statm");
	fclose(f);
	return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

// many connects often. Descriptors and memory do not leak.
static void many(void)
{
	start(0);
	struct rdma_cm_id *passive, *id = connected(&passive);
	destroy(id);
	want(there, RDMA_CM_EVENT_DISCONNECTED, 0);
	destroy(passive);
	int before = descriptors();
	long memory = 0;
	for (int i = 0; i < 10000; i++) {
		if (i == 2000)
			memory = resident();
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
	CHECK(resident() - memory < 8 << 10, "%ld KiB of memory, %ld after 2000 connections", resident(), memory);
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

// gone: accepting fails once the peer of a request is destroyed. Before that is known, an accepted id reports it as an event.
static void gone(void)
{
	start(0);
	struct rdma_conn_param p = {.qp_num = 2};
	for (useconds_t wait = 1000;; wait *= 2) {
		struct rdma_cm_id *id = routed(), *passive = requested(id);
		destroy(id);
		usleep(wait);
		int failed = rdma_accept(passive, &p);
		CHECK(!failed || errno == EINVAL, "accept");
		if (!failed)
			want(there, RDMA_CM_EVENT_REJECTED, 4);
		destroy(passive);
		if (failed)
			return;
		CHECK(wait < 30000000, "accept never fails");
	}
}

static bool destroyed;

static void *destroyer(void *id)
{
	destroy(id);
	__atomic_store_n(&destroyed, true, __ATOMIC_RELEASE);
	return NULL;
}

// unacked: destroying an id waits until its events are acknowledged.
static void unacked(void)
{
	start(0);
	struct rdma_cm_id *id = new_id(here);
	CHECK(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&service, 2000), "resolve");
	struct rdma_cm_event *e = get(here, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
	pthread_t thread;
	CHECK(!pthread_create(&thread, NULL, destroyer, id), "thread");
	usleep(50000);
	CHECK(!__atomic_load_n(&destroyed, __ATOMIC_ACQUIRE), "destroyed with an unacknowledged event");
	rdma_ack_cm_event(e);
	pthread_join(thread, NULL);
}

// beside: a TCP service and RDMA listeners of IPv4 and IPv6 have one port number, as those of valkey do.
static void beside(void)
{
	start(0);
	struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = service.sin_port};
	struct rdma_cm_id *other = new_id(there);
	int on = 1;
	CHECK(!rdma_set_option(other, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &on, sizeof(on)), "AFONLY");
	CHECK(!rdma_bind_addr(other, (struct sockaddr *)&six) && !rdma_listen(other, 0), "listen to IPv6");
	int tcp = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(!setsockopt(tcp, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)), "SO_REUSEADDR"); // an earlier connection may have had the number
	CHECK(!bind(tcp, (struct sockaddr *)&service, sizeof(service)) && !listen(tcp, 1), "a TCP service");
	CHECK(!connect(client, (struct sockaddr *)&service, sizeof(service)) && accept(tcp, NULL, NULL) >= 0, "TCP");
	struct rdma_cm_id *passive;
	connected(&passive);
	struct rdma_cm_id *id = new_id(here);
	six.sin6_addr = in6addr_loopback;
	CHECK(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&six, 2000), "resolve");
	want(here, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
	CHECK(!rdma_resolve_route(id, 2000), "route");
	want(here, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
	CHECK(!request(id, NULL, 0), "connect");
	struct rdma_cm_event *e = get(there, RDMA_CM_EVENT_CONNECT_REQUEST, 0);
	CHECK(e->listen_id == other, "the listener of IPv6");
	rdma_ack_cm_event(e);
}

enum { data_size = 1 << 20, messages = 1024, message_size = 32 };

// peer is a side with a QP, whose completions wake a non-blocking channel.
struct peer {
	struct rdma_cm_id *id;
	struct ibv_pd *pd;
	struct ibv_comp_channel *done;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	char *memory; // data, then messages
};

static void equip(struct peer *p, struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = {.cap = {messages, messages, 1, 1, 0}, .qp_type = IBV_QPT_RC};
	p->id = id;
	CHECK((p->pd = ibv_alloc_pd(id->verbs)) && (p->done = ibv_create_comp_channel(id->verbs)) && !fcntl(p->done->fd, F_SETFL, O_NONBLOCK), "objects");
	CHECK((p->cq = ibv_create_cq(id->verbs, 2 * messages, NULL, p->done, 0)) && !ibv_req_notify_cq(p->cq, 0), "CQ");
	attr.send_cq = attr.recv_cq = p->cq;
	CHECK(!rdma_create_qp(id, p->pd, &attr), "QP");
	p->memory = calloc(1, data_size + messages * message_size);
	p->mr = ibv_reg_mr(p->pd, p->memory, data_size + messages * message_size, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	CHECK(p->mr, "memory");
	for (int i = 0; i < messages; i++) {
		struct ibv_sge sge = {(uintptr_t)p->memory + data_size + (size_t)i * message_size, message_size, p->mr->lkey};
		struct ibv_recv_wr wr = {.wr_id = sge.addr, .sg_list = &sge, .num_sge = 1}, *bad;
		CHECK(!ibv_post_recv(id->qp, &wr, &bad), "post a receive");
	}
}

// completed waits for a completion.
static struct ibv_wc completed(struct peer *p, enum ibv_wc_opcode want)
{
	struct ibv_wc wc;
	struct ibv_cq *cq;
	void *context;
	for (;;) {
		int n = ibv_poll_cq(p->cq, 1, &wc);
		CHECK(n >= 0, "poll");
		if (n) {
			CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == want, "completion with status %d, opcode %d, want %d", wc.status, wc.opcode, want);
			return wc;
		}
		struct pollfd ready = {.fd = p->done->fd, .events = POLLIN};
		CHECK(poll(&ready, 1, 30000) == 1 && !ibv_get_cq_event(p->done, &cq, &context), "no completion");
		ibv_ack_cq_events(cq, 1);
		CHECK(!ibv_req_notify_cq(cq, 0), "arm");
	}
}

// offer sends the peer the address and the key of the memory for its data, which it takes.
static void offer(struct peer *p, struct peer *to, uint64_t *addr, uint64_t *key)
{
	uint64_t message[4] = {(uintptr_t)p->memory, p->mr->rkey};
	memcpy(p->memory, message, sizeof(message));
	struct ibv_sge sge = {(uintptr_t)p->memory, sizeof(message), p->mr->lkey};
	struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED}, *bad;
	CHECK(!ibv_post_send(p->id->qp, &wr, &bad), "send");
	struct ibv_wc wc = completed(to, IBV_WC_RECV);
	memcpy(message, (void *)(uintptr_t)wc.wr_id, sizeof(message));
	*addr = message[0];
	*key = message[1];
	completed(p, IBV_WC_SEND);
}

// writing: two event-driven sides tell each other where to write, then write with the length as the immediate, as valkey and its clients do.
static void writing(void)
{
	start(0);
	CHECK(!fcntl(here->fd, F_SETFL, O_NONBLOCK) && !fcntl(there->fd, F_SETFL, O_NONBLOCK), "fcntl");
	struct peer client, server;
	equip(&client, routed());
	equip(&server, requested(client.id));
	accept_it(server.id);
	want(here, RDMA_CM_EVENT_ESTABLISHED, 0);
	want(there, RDMA_CM_EVENT_ESTABLISHED, 0);
	uint64_t addr[2], key[2];
	offer(&server, &client, &addr[0], &key[0]);
	offer(&client, &server, &addr[1], &key[1]);
	for (uint32_t i = 1, n = 1; i < 400; i++, n = n * 7 % 30011 + 1) {
		struct peer *from = i % 2 ? &client : &server, *to = i % 2 ? &server : &client;
		memset(from->memory, (int)i, n);
		struct ibv_sge sge = {(uintptr_t)from->memory, n, from->mr->lkey};
		struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE_WITH_IMM, .imm_data = htonl(n), .wr.rdma = {addr[!(i % 2)], (uint32_t)key[!(i % 2)]}}, *bad;
		CHECK(!ibv_post_send(from->id->qp, &wr, &bad), "write");
		struct ibv_wc wc = completed(to, IBV_WC_RECV_RDMA_WITH_IMM);
		CHECK(ntohl(wc.imm_data) == n && to->memory[0] == (char)i && !memcmp(to->memory, from->memory, n), "message %u", i);
	}
	CHECK(!rdma_disconnect(client.id), "disconnect");
	want(there, RDMA_CM_EVENT_DISCONNECTED, 0);
	want(here, RDMA_CM_EVENT_DISCONNECTED, 0);
	for (struct peer *p = &client;; p = &server) {
		rdma_destroy_qp(p->id);
		CHECK(!ibv_dereg_mr(p->mr) && !ibv_destroy_cq(p->cq) && !ibv_destroy_comp_channel(p->done) && !ibv_dealloc_pd(p->pd), "objects in use");
		destroy(p->id);
		if (p == &server)
			break;
	}
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} modes[] = {
		{"errors", errors}, {"backlog", backlog}, {"migrate", migrate}, {"nonblocking", nonblocking}, {"closing", closing}, {"forking", forking},
		{"replaced", replaced}, {"many", many}, {"blocking", blocking}, {"gone", gone}, {"unacked", unacked}, {"beside", beside}, {"writing", writing},
	};
	for (size_t i = 0; argc == 2 && i < sizeof(modes) / sizeof(*modes); i++)
		if (!strcmp(argv[1], modes[i].name)) {
			modes[i].run();
			return 0;
		}
	return 2;
}
