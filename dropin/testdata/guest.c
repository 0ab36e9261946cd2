// A program that does to the library what programs do to libraries. The argument names the test. It exits with 0, or says
// what went wrong.
#define _GNU_SOURCE
#include "guest.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

// Closing in the wrong order is refused and changes nothing.
static void order(void)
{
	struct guest g = make();
	CHECK(ibv_dealloc_pd(g.pd) == EBUSY);
	CHECK(ibv_destroy_cq(g.cq) == EBUSY);
	CHECK(ibv_destroy_comp_channel(g.channel) == EBUSY);
	transfer(&g, 3);
	destroy(&g);
}

// A forked child gets ENODEV from everything and never hangs; the parent goes on.
static void forks(void)
{
	struct guest g = make();
	transfer(&g, 1);
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		struct ibv_wc wc;
		struct ibv_cq *cq;
		void *context;
		int n;
		CHECK(!ibv_get_device_list(&n) && errno == ENODEV);
		CHECK(!ibv_alloc_pd(g.ctx) && errno == ENODEV);
		CHECK(ibv_poll_cq(g.cq, 1, &wc) < 0);
		CHECK(ibv_get_cq_event(g.channel, &cq, &context) == -1 && errno == ENODEV);
		CHECK(ibv_destroy_qp(g.qp) == ENODEV);
		exit(0); // with exit handlers
	}
	int status;
	CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
	transfer(&g, 3);
	destroy(&g);
}

static volatile sig_atomic_t signals, deepest;

static void deep(int level)
{
	volatile char frame[1024];
	frame[0] = (char)level;
	if (level)
		deep(level - 1);
	deepest += frame[0];
}

static void handler(int sig)
{
	(void)sig;
	signals++;
	deep(16); // more stack than a goroutine begins with
}

// Handlers of the program run, with room, while its thread uses the library, and only on its own threads.
static void sig(void)
{
	struct sigaction old;
	CHECK(!sigaction(SIGSEGV, NULL, &old) && old.sa_handler == SIG_DFL);
	struct guest g = make();
	CHECK(!sigaction(SIGSEGV, NULL, &old) && old.sa_handler == SIG_DFL);
	CHECK(signal(SIGALRM, handler) == SIG_DFL);
	struct itimerval every = {{0, 200}, {0, 200}};
	CHECK(!setitimer(ITIMER_REAL, &every, NULL));
	while (signals < 500)
		transfer(&g, 10);
	every = (struct itimerval){0};
	CHECK(!setitimer(ITIMER_REAL, &every, NULL));
	destroy(&g);
}

static void *on_small_stack(void *arg)
{
	transfer(arg, 100);
	return NULL;
}

// A thread with the smallest usual stack can use the library.
static void stack(void)
{
	struct guest g = make();
	pthread_attr_t attr;
	pthread_t t[4];
	pthread_attr_init(&attr);
	CHECK(!pthread_attr_setstacksize(&attr, 64 << 10));
	for (int i = 0; i < 4; i++) { // one after the other: each thread is new to the Go runtime
		CHECK(!pthread_create(&t[i], &attr, on_small_stack, &g));
		CHECK(!pthread_join(t[i], NULL));
	}
	destroy(&g);
}

// A program that spins on memory and never polls gets its data.
static void spin(void)
{
	struct guest g = make();
	for (int i = 1; i <= 10; i++) {
		memset(g.buf, i, size);
		post_write(&g, size);
		while (((volatile char *)g.buf)[2 * size - 1] != i)
			;
	}
	for (int i = 0; i < 10; i++)
		await_one(&g);
	destroy(&g);
}

static struct ibv_cq *acked;

static void *ack_later(void *arg)
{
	usleep(50000);
	__atomic_store_n((int *)arg, 1, __ATOMIC_SEQ_CST);
	ibv_ack_cq_events(acked, 1);
	return NULL;
}

// Events come through a descriptor that poll(2) knows, and destroying waits for acknowledgements.
static void events(void)
{
	struct guest g = make();
	struct pollfd fd = {.fd = g.channel->fd, .events = POLLIN};
	struct ibv_cq *cq;
	void *context;
	CHECK(poll(&fd, 1, 0) == 0);
	CHECK(!ibv_req_notify_cq(g.cq, 0));
	post_write(&g, 8);
	CHECK(poll(&fd, 1, -1) == 1);
	CHECK(!ibv_get_cq_event(g.channel, &cq, &context) && cq == g.cq && context);
	CHECK(poll(&fd, 1, 0) == 0);
	await_one(&g);
	int late = 0;
	pthread_t t;
	acked = g.cq;
	CHECK(!ibv_destroy_qp(g.qp));
	CHECK(!pthread_create(&t, NULL, ack_later, &late));
	CHECK(!ibv_destroy_cq(g.cq) && __atomic_load_n(&late, __ATOMIC_SEQ_CST));
	CHECK(!pthread_join(t, NULL));
	CHECK(!ibv_destroy_comp_channel(g.channel));
}

// A destroyed CQ leaves no event behind.
static void stale(void)
{
	struct guest g = make();
	struct pollfd fd = {.fd = g.channel->fd, .events = POLLIN};
	CHECK(!ibv_req_notify_cq(g.cq, 0));
	post_write(&g, 8);
	CHECK(poll(&fd, 1, -1) == 1);
	await_one(&g);
	CHECK(!ibv_destroy_qp(g.qp));
	CHECK(!ibv_destroy_cq(g.cq));
	CHECK(poll(&fd, 1, 0) == 0);
	CHECK(!ibv_destroy_comp_channel(g.channel));
}

// break_qp posts a WRITE with a wrong key and waits for the error.
static void break_qp(struct guest *g)
{
	struct ibv_wc wc;
	struct ibv_sge sge = {.addr = (uintptr_t)g->buf, .length = 8, .lkey = g->mr->lkey};
	struct ibv_send_wr wr = {.opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED, .sg_list = &sge, .num_sge = 1}, *bad;
	wr.wr.rdma.remote_addr = (uintptr_t)g->buf;
	wr.wr.rdma.rkey = g->mr->rkey + 1;
	CHECK(!ibv_post_send(g->qp, &wr, &bad));
	int n;
	while (!(n = ibv_poll_cq(g->cq, 1, &wc)))
		;
	CHECK(n == 1 && wc.status != IBV_WC_SUCCESS);
}

// An asynchronous event names its QP and is acknowledged. A destroyed QP leaves none behind.
static void async(void)
{
	struct guest g = make(), other = g;
	struct pollfd fd = {.fd = g.ctx->async_fd, .events = POLLIN};
	struct ibv_async_event e;
	connect_new(&other);
	break_qp(&g);
	CHECK(poll(&fd, 1, -1) == 1);
	break_qp(&other);
	CHECK(!ibv_get_async_event(g.ctx, &e));
	CHECK(e.event_type == IBV_EVENT_QP_ACCESS_ERR && e.element.qp == g.qp);
	ibv_ack_async_event(&e);
	CHECK(poll(&fd, 1, -1) == 1 && !ibv_destroy_qp(other.qp) && poll(&fd, 1, 0) == 0);
	destroy(&g);
}

// limit: the limit of an SRQ is 0 once its event has been raised, and what is set then stays.
static void limit(void)
{
	struct guest g = make();
	struct ibv_async_event e;
	struct ibv_srq_init_attr init = {.attr = {.max_wr = 4, .max_sge = 1}};
	struct ibv_srq_attr attr = {.srq_limit = 2};
	struct ibv_recv_wr recv[2] = {{.next = &recv[1]}}, *bad_recv;
	struct ibv_send_wr send = {.opcode = IBV_WR_SEND}, *bad;
	struct ibv_srq *srq = ibv_create_srq(g.pd, &init);
	struct ibv_qp_init_attr with = {.send_cq = g.cq, .recv_cq = g.cq, .srq = srq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1, .cap = {.max_send_wr = 1}};
	CHECK(srq && !ibv_destroy_qp(g.qp) && (g.qp = ibv_create_qp(g.pd, &with)));
	connect_self(&g);
	CHECK(!ibv_post_srq_recv(srq, recv, &bad_recv) && !ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT));
	CHECK(!ibv_query_srq(srq, &attr) && attr.srq_limit == 2 && !ibv_post_send(g.qp, &send, &bad));
	await_one(&g);
	await_one(&g);
	CHECK(!ibv_query_srq(srq, &attr) && attr.srq_limit == 0 && attr.max_wr == 4);
	attr.srq_limit = 1;
	CHECK(!ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT));
	CHECK(!ibv_get_async_event(g.ctx, &e) && e.event_type == IBV_EVENT_SRQ_LIMIT_REACHED && e.element.srq == srq);
	ibv_ack_async_event(&e);
	CHECK(!ibv_query_srq(srq, &attr) && attr.srq_limit == 1);
	CHECK(!ibv_destroy_qp(g.qp) && !ibv_destroy_srq(srq) && !ibv_close_device(g.ctx));
}

// dlopen and dlvsym find the functions, as NCCL looks for them. dlclose does no harm.
static void dl(void)
{
	void *lib = dlopen("libibverbs.so.1", RTLD_NOW);
	CHECK(lib);
	struct ibv_device **(*list)(int *) = dlvsym(lib, "ibv_get_device_list", "IBVERBS_1.1");
	void (*release)(struct ibv_device **) = dlvsym(lib, "ibv_free_device_list", "IBVERBS_1.1");
	CHECK(list && release && list == ibv_get_device_list);
	CHECK(dlvsym(lib, "ibv_reg_mr_iova2", "IBVERBS_1.8"));
	int n;
	struct ibv_device **all = list(&n);
	CHECK(all && n > 0);
	release(all);
	CHECK(!dlclose(lib));
	struct guest g = make();
	transfer(&g, 3);
	destroy(&g);
}

// Regions under other addresses, registered again, and a CQ that is resized.
static void memory(void)
{
	struct guest g = make();
	struct ibv_mr *mr = ibv_reg_mr_iova(g.pd, g.buf, size, 0x1000, IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr && mr->addr == g.buf && mr->length == size);
	CHECK(!ibv_dereg_mr(mr));
	CHECK(!ibv_rereg_mr(g.mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
	transfer(&g, 1);
	CHECK(ibv_rereg_mr(g.mr, IBV_REREG_MR_CHANGE_PD, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT);
	transfer(&g, 1);
	char *hole = mmap(NULL, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(!ibv_resize_cq(g.cq, 500) && g.cq->cqe >= 500);
	transfer(&g, 1);
	CHECK(!ibv_reg_mr(g.pd, (void *)-4096L, 2 * size, 0) && errno == EINVAL);
	CHECK(!ibv_reg_mr(g.pd, (void *)8, size, 0) && errno == EINVAL);
	CHECK(!munmap(hole + 4096, 4096) && !ibv_reg_mr(g.pd, hole + 1, 3 * 4096 - 1, 0) && errno == EFAULT);
	CHECK((mr = ibv_reg_mr(g.pd, hole + 1, 4095, 0)) && ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, hole + 1, 4096, 0) && errno == EFAULT);
	CHECK(!ibv_dereg_mr(mr));
	CHECK(!ibv_alloc_mw(g.pd, IBV_MW_TYPE_1) && errno == EOPNOTSUPP);
	CHECK(!ibv_reg_mr(g.pd, g.buf, size, IBV_ACCESS_ON_DEMAND) && errno == EOPNOTSUPP);
	CHECK(!ibv_reg_dmabuf_mr(g.pd, 0, size, 0, 0, 0) && errno == EOPNOTSUPP);
	destroy(&g);
}

// lists: requests with as many SGEs as the device allows, by both ways of posting. The array can be reused at once.
static void lists(void)
{
	enum { most = 16 };
	struct guest g = make();
	struct ibv_device_attr dev;
	CHECK(!ibv_query_device(g.ctx, &dev) && dev.max_sge == most && dev.max_srq_sge == most);
	CHECK(!ibv_destroy_qp(g.qp));
	struct ibv_qp_init_attr_ex init = {.send_cq = g.cq, .recv_cq = g.cq, .qp_type = IBV_QPT_RC, .pd = g.pd,
					   .cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = most, .max_recv_sge = most},
					   .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
					   .send_ops_flags = IBV_QP_EX_WITH_SEND};
	CHECK((g.qp = ibv_create_qp_ex(g.ctx, &init)));
	connect_self(&g);
	struct ibv_sge from[most], to[most];
	for (int round = 0; round < 2; round++) {
		memset(g.buf + size, 0, size);
		for (int i = 0; i < most; i++) {
			from[i] = (struct ibv_sge){.addr = (uintptr_t)g.buf + i, .length = 1, .lkey = g.mr->lkey};
			to[i] = (struct ibv_sge){.addr = (uintptr_t)g.buf + size + 10 * i, .length = 1, .lkey = g.mr->lkey};
			g.buf[i] = (char)(round * 100 + i + 1);
		}
		struct ibv_recv_wr recv = {.sg_list = to, .num_sge = most}, *bad_recv;
		CHECK(!ibv_post_recv(g.qp, &recv, &bad_recv));
		if (round) {
			struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(g.qp);
			ibv_wr_start(ex);
			ex->wr_flags = IBV_SEND_SIGNALED;
			ibv_wr_send(ex);
			ibv_wr_set_sge_list(ex, most, from);
			memset(from, 0, sizeof(from));
			CHECK(!ibv_wr_complete(ex));
		} else {
			struct ibv_send_wr wr = {.opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED, .sg_list = from, .num_sge = most}, *bad;
			CHECK(!ibv_post_send(g.qp, &wr, &bad));
			wr.num_sge = most + 1;
			CHECK(ibv_post_send(g.qp, &wr, &bad) == EINVAL && bad == &wr);
			memset(from, 0, sizeof(from));
		}
		await_one(&g);
		await_one(&g);
		for (int i = 0; i < most; i++)
			CHECK(g.buf[size + 10 * i] == g.buf[i]);
	}
	destroy(&g);
}

// chain posts n empty sends without receives, whose last one has that many SGEs.
static int chain(struct ibv_qp *qp, int n, size_t sges)
{
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);
	struct ibv_sge list[2] = {0};
	ibv_wr_start(ex);
	for (int i = 0; i < n; i++)
		ibv_wr_send(ex);
	ibv_wr_set_sge_list(ex, sges, list);
	return ibv_wr_complete(ex);
}

// chains: ibv_wr_complete posts all requests or none.
static void chains(void)
{
	struct guest g = make();
	CHECK(!ibv_destroy_qp(g.qp));
	struct ibv_qp_init_attr_ex init = {.send_cq = g.cq, .recv_cq = g.cq, .qp_type = IBV_QPT_RC, .pd = g.pd,
					   .cap = {.max_send_wr = 16, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
					   .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
					   .send_ops_flags = IBV_QP_EX_WITH_SEND};
	CHECK((g.qp = ibv_create_qp_ex(g.ctx, &init)));
	connect_self(&g);
	CHECK(chain(g.qp, 17, 0) == ENOMEM && chain(g.qp, 2, 2) == EINVAL && chain(g.qp, 15, 0) == 0);
	CHECK(chain(g.qp, 2, 0) == ENOMEM && chain(g.qp, 1, 0) == 0 && chain(g.qp, 1, 0) == ENOMEM);
	destroy(&g);
}

// multicast: QPs of a group get what is sent to it. A QP leaves its groups before it is destroyed.
static void multicast(void)
{
	struct guest g = make();
	struct ibv_device_attr dev;
	union ibv_gid mgid = {.raw = {[10] = 0xff, [11] = 0xff, [12] = 239, [13] = 78}};
	CHECK(ibv_attach_mcast(g.qp, &mgid, 0) == EINVAL); // an RC QP
	struct ibv_qp_init_attr init = {.send_cq = g.cq, .recv_cq = g.cq, .qp_type = IBV_QPT_UD, .sq_sig_all = 1,
					.cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1}};
	struct ibv_qp *qps[2];
	struct ibv_sge sge = {.addr = (uintptr_t)g.buf, .length = 100, .lkey = g.mr->lkey};
	for (int i = 0; i < 2; i++) {
		CHECK((qps[i] = ibv_create_qp(g.pd, &init)));
		struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 7};
		CHECK(!ibv_modify_qp(qps[i], &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
		a.qp_state = IBV_QPS_RTR;
		CHECK(!ibv_modify_qp(qps[i], &a, IBV_QP_STATE));
		a.qp_state = IBV_QPS_RTS;
		CHECK(!ibv_modify_qp(qps[i], &a, IBV_QP_STATE | IBV_QP_SQ_PSN));
		struct ibv_recv_wr recv = {.sg_list = &sge, .num_sge = 1}, *bad;
		CHECK(!ibv_post_recv(qps[i], &recv, &bad));
		CHECK(!ibv_attach_mcast(qps[i], &mgid, 0xc001) && !ibv_attach_mcast(qps[i], &mgid, 0xc001));
	}
	struct ibv_ah_attr to = {.is_global = 1, .port_num = 1, .dlid = 0xc001, .grh = {.dgid = mgid}};
	struct ibv_ah *ah = ibv_create_ah(g.pd, &to);
	CHECK(ah);
	sge.length = 10;
	struct ibv_send_wr wr = {.opcode = IBV_WR_SEND, .sg_list = &sge, .num_sge = 1}, *bad;
	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = 0xffffff;
	wr.wr.ud.remote_qkey = 7;
	CHECK(!ibv_post_send(qps[0], &wr, &bad));
	for (int i = 0; i < 3; i++) // the send and two receives
		await_one(&g);
	CHECK(ibv_destroy_qp(qps[0]) == EBUSY && !ibv_detach_mcast(qps[0], &mgid, 0xc001));
	CHECK(ibv_detach_mcast(qps[0], &mgid, 0xc001) == EINVAL && !ibv_destroy_qp(qps[0]));
	CHECK(!ibv_query_device(g.ctx, &dev) && dev.max_mcast_grp > 0);
	for (int i = 1; i < dev.max_mcast_grp; i++) {
		mgid.raw[15] = (uint8_t)i;
		CHECK(!ibv_attach_mcast(qps[1], &mgid, 0));
	}
	mgid.raw[14] = 1;
	CHECK(ibv_attach_mcast(qps[1], &mgid, 0) == ENOMEM);
	CHECK(!ibv_destroy_ah(ah)); // the context ends the memberships that are left
	CHECK(!ibv_close_device(g.ctx));
}

// Programs that were built for glibc before 2.33 call this in place of stat.
int __xstat(int version, const char *path, struct stat *to);
#ifdef __x86_64__
__asm__(".symver __xstat,__xstat@GLIBC_2.2.5");
enum { stat_version = 1 };
#else
__asm__(".symver __xstat,__xstat@GLIBC_2.17");
enum { stat_version = 0 };
#endif

// files: what a kernel with RDMA would have in /dev and /sys is there for a program that has listed the devices, and nothing else changes.
static void files(void)
{
	const char *type = "/sys/class/infiniband/soft0/ports/1/gid_attrs/types/0";
	const char *none = "/sys/class/infiniband/soft0/ports/1/gid_attrs/types/99";
	struct stat st;
	char text[64] = "", made[] = "/tmp/ibverbx-guest-XXXXXX";
	bool hardware = !syscall(SYS_faccessat, AT_FDCWD, "/dev/infiniband/uverbs0", F_OK);
	CHECK(hardware || (stat("/dev/infiniband/uverbs0", &st) && errno == ENOENT));
	CHECK(!ibv_close_device(open_first()));
	CHECK(!stat("/dev/infiniband/uverbs0", &st) && S_ISCHR(st.st_mode) && !access("/dev/infiniband/uverbs0", R_OK | W_OK));
	CHECK(stat("/dev/infiniband/uverbs16", &st) && errno == ENOENT);
	CHECK(!lstat("/dev/infiniband/uverbs0", &st) && S_ISCHR(st.st_mode) && !faccessat(AT_FDCWD, "/dev/infiniband/uverbs0", R_OK, 0));
	CHECK(!fstatat(AT_FDCWD, type, &st, AT_SYMLINK_NOFOLLOW) && st.st_size == 8 && fstatat(AT_FDCWD, none, &st, 0) && errno == ENOENT);
	CHECK(open("/dev/infiniband/uverbs0", O_RDWR) < 0 && errno == ENXIO);
	CHECK(!stat(type, &st) && S_ISREG(st.st_mode) && st.st_size == 8 && !access(type, R_OK) && access(type, W_OK) && errno == EACCES);
	int fd = open(type, O_RDONLY | O_CLOEXEC);
	CHECK(fd >= 0 && fcntl(fd, F_GETFD) == FD_CLOEXEC && read(fd, text, sizeof(text)) == 8 && !strcmp(text, "RoCE v2\n"));
	CHECK(!close(fd) && (fd = openat(AT_FDCWD, type, O_RDONLY)) >= 0 && read(fd, text, sizeof(text)) == 8 && !close(fd));
	FILE *f = fopen("/sys/class/infiniband/soft0/ports/1/gid_attrs/ndevs/0", "re");
	CHECK(f && fcntl(fileno(f), F_GETFD) == FD_CLOEXEC && fgets(text, sizeof(text), f) && !strcmp(text, "lo\n") && !fclose(f));
	CHECK(open(type, O_WRONLY) < 0 && errno == EACCES && !fopen(type, "w") && errno == EACCES);
	CHECK(open(none, O_RDONLY) < 0 && errno == ENOENT && !fopen(none, "r") && errno == ENOENT);
	CHECK((fd = mkstemp(made)) >= 0 && !close(fd) && !lstat(made, &st) && !faccessat(AT_FDCWD, made, R_OK, 0) && !unlink(made));
	CHECK((fd = openat(AT_FDCWD, made, O_CREAT | O_RDWR, 0604)) >= 0 && !fstatat(AT_FDCWD, made, &st, 0) && !close(fd) && !unlink(made));
	umask(0);
	CHECK((fd = open(made, O_CREAT | O_RDWR, 0640)) >= 0 && !stat(made, &st) && (st.st_mode & 0777) == 0640);
	CHECK(!__xstat(stat_version, type, &st) && st.st_size == 8 && !__xstat(stat_version, made, &st) && (st.st_mode & 0777) == 0640);
	CHECK(!close(fd) && (f = fopen(made, "w")) && !fclose(f) && !access(made, R_OK) && !unlink(made));
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} tests[] = {{"order", order}, {"fork", forks}, {"signals", sig}, {"stack", stack}, {"spin", spin}, {"events", events},
		     {"stale", stale}, {"async", async}, {"limit", limit}, {"dlopen", dl}, {"memory", memory}, {"lists", lists}, {"chains", chains}, {"files", files},
		     {"multicast", multicast}};
	for (size_t i = 0; i < sizeof(tests) / sizeof(*tests); i++)
		if (argc == 2 && !strcmp(argv[1], tests[i].name)) {
			tests[i].run();
			return 0;
		}
	fprintf(stderr, "no test %s\n", argc == 2 ? argv[1] : "given");
	return 2;
}
