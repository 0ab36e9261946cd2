// A program whose signal handlers do what POSIX allows them, while it is inside the verbs. The argument names the test. It exits with 7, or
// prints what went wrong.
#define _GNU_SOURCE
#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#pragma GCC diagnostic ignored "-Wdeprecated-declarations" // sigset

#define CHECK(cond) \
	do { \
		if (!(cond)) { \
			fprintf(stderr, "%s:%d: %s is false, errno %d (%s)\n", __FILE__, __LINE__, #cond, errno, strerror(errno)); \
			_exit(1); \
		} \
	} while (0)

enum { status = 7, size = 4096, rounds = 200 };

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *mr;
static char buf[2 * size];
static volatile sig_atomic_t handled;
static sigjmp_buf back;
static __thread volatile bool used; // by this thread: Go has set its alternate stack

// make connects a QP to itself.
static void make(void)
{
	int n;
	struct ibv_device **list = ibv_get_device_list(&n);
	CHECK(list && n > 0 && (ctx = ibv_open_device(list[0])));
	used = true;
	ibv_free_device_list(list);
	CHECK((pd = ibv_alloc_pd(ctx)) && (channel = ibv_create_comp_channel(ctx)) && (cq = ibv_create_cq(ctx, 64, NULL, channel, 0)));
	struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
					.cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1}};
	CHECK((qp = ibv_create_qp(pd, &init)));
	CHECK((mr = ibv_reg_mr(pd, buf, sizeof(buf), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)));
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
	CHECK(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = qp->qp_num,
				 .ah_attr = {.is_global = 1, .port_num = 1}, .max_dest_rd_atomic = 1};
	CHECK(!ibv_query_gid(ctx, 1, 0, &a.ah_attr.grh.dgid));
	CHECK(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
	CHECK(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
					     IBV_QP_MAX_QP_RD_ATOMIC));
}

static int post(void)
{
	struct ibv_sge sge = {.addr = (uintptr_t)buf, .length = size, .lkey = mr->lkey};
	struct ibv_send_wr wr = {.opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED, .sg_list = &sge, .num_sge = 1}, *bad;
	wr.wr.rdma.remote_addr = (uintptr_t)buf + size;
	wr.wr.rdma.rkey = mr->rkey;
	return ibv_post_send(qp, &wr, &bad);
}

// verbs calls the verbs of a data path, for ever if times is 0.
static void verbs(int times)
{
	struct ibv_wc wc[4];
	for (int i = 0; !times || i < times; i++) {
		int err = post();
		CHECK(!err || err == ENOMEM);
		CHECK(ibv_poll_cq(cq, 4, wc) >= 0);
		used = true;
	}
}

// check_stack fails unless it runs on the stack of the program, with an alternate stack for Go.
static void check_stack(void)
{
	stack_t alt;
	CHECK(!sigaltstack(NULL, &alt) && !(alt.ss_flags & SS_ONSTACK) && (!used || !(alt.ss_flags & SS_DISABLE)));
}

static void install(int sig, void (*handler)(int, siginfo_t *, void *), int flags)
{
	struct sigaction act = {.sa_sigaction = handler, .sa_flags = flags | SA_SIGINFO};
	CHECK(!sigaction(sig, &act, NULL));
}

static void tick(long us)
{
	struct itimerval every = {{0, us}, {0, us}};
	CHECK(!setitimer(ITIMER_REAL, &every, NULL));
}

// interval is different in each process, so that the signals meet different moments.
static long interval(void) { return 500 + getpid() % 97 * 37; }

static void call_exit(int sig, siginfo_t *info, void *uc)
{
	(void)sig, (void)info, (void)uc;
	check_stack();
	exit(status);
}

static void register_until_exit(void)
{
	make();
	install(SIGALRM, call_exit, 0);
	tick(interval());
	for (;;) {
		struct ibv_mr *other = ibv_reg_mr(pd, buf, sizeof(buf), 0);
		CHECK(other && !ibv_dereg_mr(other));
	}
}

// The handler was installed before the library was loaded.
static void poll_until_exit(void)
{
	install(SIGALRM, call_exit, 0);
	make();
	struct ibv_wc wc;
	tick(interval());
	for (;;)
		CHECK(ibv_poll_cq(cq, 1, &wc) == 0);
}

static void use_verbs(int sig, siginfo_t *info, void *uc)
{
	(void)sig, (void)info, (void)uc;
	struct ibv_port_attr a;
	int count = ++handled;
	CHECK(!ibv_query_port(ctx, 1, &a));
	verbs(10);
	if (count >= rounds / 10)
		_exit(status);
}

// The handler calls verbs itself, and _exit. Signals interrupt it, too.
static void verbs_in_handler(void)
{
	make();
	install(SIGALRM, use_verbs, 0);
	install(SIGUSR1, use_verbs, SA_NODEFER);
	install(SIGRTMIN, use_verbs, 0);
	tick(interval());
	for (;;) {
		verbs(50);
		raise(handled % 2 ? SIGUSR1 : SIGRTMIN);
	}
}

static void jump(int sig, siginfo_t *info, void *uc)
{
	(void)sig, (void)info, (void)uc;
	handled++;
	siglongjmp(back, 1);
}

static void jump_out(void)
{
	make();
	install(SIGALRM, jump, 0);
	install(SIGRTMIN, jump, 0); // on the alternate stack
	tick(interval());
	if (sigsetjmp(back, 1) && handled % 3 == 0)
		raise(SIGRTMIN);
	while (handled < rounds / 4)
		verbs(50);
	tick(0);
	verbs(50);
	check_stack(); // Go still has its alternate stack
	exit(status);
}

// phase is what the handler of the program does.
static volatile enum { counting, posting, leaving } phase;

static void act(int sig, siginfo_t *info, void *uc)
{
	(void)sig, (void)info, (void)uc;
	check_stack();
	if (++handled == 5 && phase == posting)
		CHECK(!post());
	if (phase == leaving)
		exit(status);
}

// A call that waits for an event is interrupted, or resumed after a handler with SA_RESTART. So is sigsuspend.
static void wait_for_event(void)
{
	make();
	struct ibv_cq *got;
	void *context;
	struct ibv_wc wc;
	sigset_t blocked, before;
	CHECK(!ibv_req_notify_cq(cq, 0));
	install(SIGALRM, act, 0);
	tick(1000);
	CHECK(ibv_get_cq_event(channel, &got, &context) == -1 && errno == EINTR && handled > 0);
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGALRM);
	CHECK(!sigprocmask(SIG_BLOCK, &blocked, &before));
	handled = 0;
	CHECK(sigsuspend(&before) == -1 && errno == EINTR && handled == 1);
	CHECK(!sigprocmask(SIG_BLOCK, NULL, &blocked) && sigismember(&blocked, SIGALRM) == 1 && sigismember(&blocked, SIGTERM) == 0);
	install(SIGALRM, act, SA_RESTART);
	phase = posting;
	CHECK(!sigprocmask(SIG_SETMASK, &before, NULL));
	CHECK(!ibv_get_cq_event(channel, &got, &context) && got == cq && handled >= 5);
	ibv_ack_cq_events(cq, 1);
	while (!ibv_poll_cq(cq, 1, &wc))
		;
	phase = leaving;
	struct ibv_async_event event;
	ibv_get_async_event(ctx, &event);
	CHECK(!"an event arrived");
}

static pthread_t target;
static pid_t self;

static void check_info(int sig, siginfo_t *info, void *uc)
{
	sigset_t now;
	CHECK(sig == SIGRTMIN && info->si_signo == sig && info->si_code == SI_QUEUE && info->si_pid == self && info->si_uid == getuid());
	CHECK(pthread_equal(pthread_self(), target));
	CHECK(!pthread_sigmask(SIG_BLOCK, NULL, &now) && sigismember(&now, SIGUSR1) == 1 && sigismember(&now, SIGUSR2) == 1);
	CHECK(sigismember(&now, sig) == 1 && sigismember(&now, SIGTERM) == 0 && sigismember(&now, SIGALRM) == 0);
	now = ((ucontext_t *)uc)->uc_sigmask; // of the program, as it will be after the handler
	CHECK(sigismember(&now, SIGUSR2) == 1 && sigismember(&now, SIGTERM) == 0 && sigismember(&now, sig) == 0);
	CHECK(info->si_value.sival_int == ++handled); // in order
}

static void *send_signals(void *arg)
{
	(void)arg;
	for (int i = 1; i <= rounds; i++) {
		union sigval value = {.sival_int = i};
		CHECK(!pthread_sigqueue(target, SIGRTMIN, value));
		usleep(i % 7 * 50);
	}
	return NULL;
}

// Each queued signal arrives once on the thread that it is for, with its data and the mask of the program.
static void information(void)
{
	make();
	self = getpid();
	target = pthread_self();
	sigset_t blocked, after;
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGUSR2);
	CHECK(!pthread_sigmask(SIG_BLOCK, &blocked, NULL));
	struct sigaction act = {.sa_sigaction = check_info, .sa_flags = SA_SIGINFO};
	sigaddset(&act.sa_mask, SIGUSR1);
	CHECK(!sigaction(SIGRTMIN, &act, NULL));
	pthread_t sender;
	CHECK(!pthread_create(&sender, NULL, send_signals, NULL));
	while (handled < rounds)
		verbs(20);
	CHECK(!pthread_join(sender, NULL));
	CHECK(!pthread_sigmask(SIG_BLOCK, NULL, &after) && sigismember(&after, SIGUSR2) == 1 && sigismember(&after, SIGTERM) == 0);
	exit(status);
}

static void count(int sig) { handled += sig > 0; }

static void nested(int sig)
{
	static volatile sig_atomic_t level;
	int at = ++level;
	handled++;
	if (at == 1)
		CHECK(!raise(sig) && handled >= 2); // SA_NODEFER: at once
	level--;
}

static void probe(int sig, siginfo_t *info, void *uc) { (void)sig, (void)info, (void)uc; }

// Actions are reported as they were set, and flags mean what they mean without the library.
static void actions(void)
{
	struct sigaction old, act = {.sa_sigaction = probe, .sa_flags = SA_SIGINFO | SA_RESTART};
	sigaddset(&act.sa_mask, SIGHUP);
	CHECK(!sigaction(SIGUSR1, &act, NULL) && signal(SIGUSR2, count) == SIG_DFL);
	make();
	CHECK(!sigaction(SIGUSR1, NULL, &old) && old.sa_sigaction == probe && sigismember(&old.sa_mask, SIGHUP) == 1);
	CHECK((old.sa_flags & (SA_SIGINFO | SA_RESTART | SA_ONSTACK | SA_RESETHAND | SA_NODEFER)) == (SA_SIGINFO | SA_RESTART));
	CHECK(signal(SIGUSR2, SIG_IGN) == count && signal(SIGUSR2, count) == SIG_IGN && signal(SIGUSR2, SIG_DFL) == count);
	CHECK(!sigaction(SIGUSR2, NULL, &old) && old.sa_handler == SIG_DFL);
	CHECK(sysv_signal(SIGUSR2, count) == SIG_DFL && !sigaction(SIGUSR2, NULL, &old) && old.sa_handler == count);
	CHECK((old.sa_flags & (SA_SIGINFO | SA_RESETHAND | SA_NODEFER)) == (SA_RESETHAND | SA_NODEFER));
	CHECK(!raise(SIGUSR2) && handled == 1 && !sigaction(SIGUSR2, NULL, &old) && old.sa_handler == SIG_DFL);
	CHECK(sigset(SIGUSR2, count) == SIG_DFL && sigset(SIGUSR2, SIG_DFL) == count);
	act = (struct sigaction){.sa_handler = nested, .sa_flags = SA_NODEFER};
	CHECK(!sigaction(SIGALRM, &act, &old) && old.sa_handler == SIG_DFL);
	tick(200);
	while (handled < rounds)
		verbs(20);
	tick(0);
	CHECK(sigaction(SIGKILL, &old, NULL) == -1 && errno == EINVAL && signal(NSIG, count) == SIG_ERR && errno == EINVAL);
	sigset_t waited;
	sigemptyset(&waited);
	sigaddset(&waited, SIGUSR1);
	CHECK(!pthread_sigmask(SIG_BLOCK, &waited, NULL) && !raise(SIGUSR1));
	verbs(20);
	int got;
	CHECK(!sigwait(&waited, &got) && got == SIGUSR1);
	pid_t child = fork();
	CHECK(child >= 0);
	if (!child) {
		install(SIGUSR1, call_exit, 0);
		CHECK(!raise(SIGUSR1) && !pthread_sigmask(SIG_UNBLOCK, &waited, NULL));
	}
	CHECK(waitpid(child, &got, 0) == child && WIFEXITED(got) && WEXITSTATUS(got) == status);
	exit(status);
}

static void exit_once(int sig, siginfo_t *info, void *uc)
{
	if (handled++ == 0)
		call_exit(sig, info, uc);
}

static void first_verb(int sig)
{
	(void)sig;
	verbs(1);
}

static void *use(void *arg)
{
	if (arg)
		CHECK(!raise(SIGUSR1));
	check_stack();
	verbs(0);
	return NULL;
}

// Any thread may get the signal, even in its first call, which may be in a handler.
static void threads(void)
{
	make();
	install(SIGALRM, exit_once, 0);
	CHECK(signal(SIGUSR1, first_verb) == SIG_DFL);
	pthread_t t;
	tick(interval());
	for (int i = 0; i < 3; i++)
		CHECK(!pthread_create(&t, NULL, use, i ? NULL : &t));
	verbs(0);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} tests[] = {{"exit in reg_mr", register_until_exit}, {"exit in poll", poll_until_exit}, {"verbs in handler", verbs_in_handler},
		     {"siglongjmp", jump_out}, {"event", wait_for_event}, {"information", information}, {"actions", actions}, {"threads", threads}};
	for (size_t i = 0; i < sizeof(tests) / sizeof(*tests); i++)
		if (argc == 2 && !strcmp(argv[1], tests[i].name))
			tests[i].run();
	fprintf(stderr, "no test %s\n", argc == 2 ? argv[1] : "given");
	return 2;
}
