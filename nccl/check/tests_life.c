// Tests of the life of plugins, connections and processes.
#define _GNU_SOURCE
#include "net.h"
#include "tests.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

bool peer_may_die;

static void close_comm(void *comm, bool send) { CHECK(send ? !net_close_send(comm) : !net_close_recv(comm), "close"); }

// test_check: what `ibverbx nccl --check` runs. It describes the device and moves data in both directions.
void test_check(void)
{
	enum { SIZE = 4 << 20, ROUNDS = 32 };
	net_verbose = rank == 0;
	net_open();
	void *out = connection(0), *in = connection(1), *out_mr, *in_mr;
	unsigned char *a = map(SIZE), *b = map(SIZE);
	void *send = rank ? in : out, *recv = rank ? out : in;
	CHECK(!net_reg(send, a, SIZE, &out_mr) && !net_reg(recv, b, SIZE, &in_mr), "regMr");
	fill(a, SIZE, (uint64_t)rank);
	double begin = now();
	for (int i = 0; i < ROUNDS; i++) {
		void *r = post(false, recv, b, SIZE, in_mr), *s = post(true, send, a, SIZE, out_mr);
		CHECK(await(r) == SIZE && await(s) == SIZE, "the size of a message");
	}
	double took = now() - begin;
	CHECK(same(b, SIZE, (uint64_t)!rank), "the data differs");
	if (rank == 0)
		printf("table v%d: %d MiB moved in each direction between two processes, every byte right, %.2f GB/s each\n", net_version,
		       SIZE / (1 << 20) * ROUNDS, (double)SIZE * ROUNDS / took / 1e9);
	CHECK(!net_dereg(send, out_mr) && !net_dereg(recv, in_mr), "deregMr");
	close_comm(send, true);
	close_comm(recv, false);
	CHECK(!net_finalize(net_ctx), "finalize");
}

static void exchange(void)
{
	void *comm = connection(0), *mr;
	unsigned char b[256];
	CHECK(!net_reg(comm, b, sizeof(b), &mr), "regMr");
	if (rank == 0)
		fill(b, sizeof(b), 1);
	CHECK(transfer(0, comm, b, sizeof(b), sizeof(b), mr) == sizeof(b) && same(b, sizeof(b), 1), "the data differs");
	CHECK(!net_dereg(comm, mr), "deregMr");
	close_comm(comm, rank == 0);
}

// test_load: the plugin works after it was unloaded and loaded again, with several contexts, finalized in any order, and after a finalize
// without a context, which NCCL 2.28 calls after a failed init.
void test_load(void)
{
	void *contexts[3];
	struct sigaction before, after;
	sigset_t mask, masked;
	sigaction(SIGSEGV, NULL, &before);
	sigprocmask(SIG_SETMASK, NULL, &mask);
	net_load();
	net_unload();
	for (int round = 0; round < 3; round++) {
		net_open();
		contexts[0] = net_ctx;
		for (int i = 1; i < 3; i++)
			CHECK(!net_init(&contexts[i]), "init %d", i);
		for (int i = 0; i < 3; i++) {
			net_ctx = contexts[i];
			exchange();
		}
		CHECK(!net_finalize(NULL), "finalize without a context");
		for (int i = 0; i < 3; i++)
			CHECK(!net_finalize(contexts[(i + round) % 3]), "finalize");
		CHECK(!net_finalize(contexts[0]), "finalize again");
		net_unload();
	}
	sigaction(SIGSEGV, NULL, &after);
	sigprocmask(SIG_SETMASK, NULL, &masked);
	CHECK(before.sa_handler == after.sa_handler && !memcmp(&mask, &masked, 8), "the signal actions or the mask have changed");
}

// test_refused: a plugin whose core cannot be used has no devices.
void test_refused(void)
{
	int n = 0;
	net_load();
	CHECK(net_init(&net_ctx) && net_init(&net_ctx), "init with a core that cannot be used");
	CHECK(net_devices(&n) && n == 0, "devices: %d", n);
}

// quick checks that a call has not blocked. A call takes microseconds; the limit leaves space for a busy machine.
static void quick(double begin, const char *what) { CHECK(now() - begin < 5, "%s took %.3f s", what, now() - begin); }

// test_connect: 32 connections at a time, in either order; wrong handles; abandoned attempts; closing while connecting.
void test_connect(void)
{
	enum { N = 32 };
	char handles[N][HANDLE], wrong[HANDLE];
	void *listeners[N], *comms[N] = {NULL};
	net_open();
	if (rank == 0) {
		for (int i = 0; i < N; i++)
			CHECK(!net_listen(handles[i], &listeners[i]), "listen");
		for (int i = 0; i < N; i++) // nobody has dialed
			CHECK(!net_accept(listeners[i], &comms[i]) && !comms[i], "accept before connect");
		put(handles, sizeof(handles));
	} else {
		take(handles, sizeof(handles));
		memcpy(wrong, handles[0], HANDLE);
	}
	double begin = now();
	for (int left = N; left > 0; pause_ms(1)) {
		for (int i = 0; i < N; i++) {
			if (comms[i])
				continue;
			double at = now();
			int err = rank ? net_connect(handles[i], &comms[i]) : net_accept(listeners[i], &comms[i]);
			quick(at, "connect or accept");
			CHECK(!err, "connection %d: %d", i, err);
			left -= comms[i] != NULL;
		}
		CHECK(now() - begin < 60, "%d of %d connections are missing", left, N);
	}
	meet();
	for (int i = 0; i < N; i++) {
		close_comm(comms[i], rank == 1);
		if (rank == 0)
			CHECK(!net_close_listen(listeners[i]), "closeListen");
	}
	if (rank == 1) { // a wrong token, a dead port, garbage: an error
		for (int kind = 0; kind < 3; kind++) {
			char handle[HANDLE];
			void *comm = NULL;
			int err = 0;
			memcpy(handle, wrong, HANDLE);
			if (kind == 0)
				handle[30] ^= 1;
			else if (kind == 1)
				handle[6] = 1, handle[7] = 0;
			else
				memset(handle, 0x77, HANDLE);
			for (double end = now() + 60; !err && !comm; pause_ms(1)) {
				double at = now();
				err = net_connect(handle, &comm);
				quick(at, "connect");
				CHECK(now() < end, "no error");
			}
			CHECK(err && !comm, "handle %d connects", kind);
		}
	}
	meet();
	// Attempts that nobody fetches, and a listener that is closed meanwhile.
	char handle[HANDLE];
	void *listener, *comm = NULL;
	if (rank == 0) {
		CHECK(!net_listen(handle, &listener), "listen");
		put(handle, HANDLE);
		meet();
		CHECK(!net_close_listen(listener), "closeListen");
	} else {
		take(handle, HANDLE);
		CHECK(!net_connect(handle, &comm), "connect");
		meet();
	}
	begin = now();
	CHECK(!net_finalize(net_ctx), "finalize");
	quick(begin, "finalize");
	meet();
	CHECK(!net_init(&net_ctx), "init");
	exchange();
}

// test_abort: after a close with requests outstanding nothing is written any more, even if deregMr comes first and the peer goes on sending.
void test_abort(void)
{
	enum { SIZE = 4 << 20, N = 8 };
	net_open();
	for (int round = 0; round < 4; round++) {
		void *comm = connection(0), *mr, *requests[N] = {NULL};
		unsigned char *b = map(SIZE * N);
		CHECK(!net_reg(comm, b, SIZE * N, &mr), "regMr");
		if (rank == 1)
			for (int i = 0; i < N; i++)
				requests[i] = post(false, comm, b + i * SIZE, SIZE, mr);
		meet();
		if (rank == 0) {
			memset(b, 1, SIZE * N);
			int err = 0;
			for (int i = 0; i < N && !err; i++) // the other end may be closed already
				do
					err = net_isend(comm, b + i * SIZE, SIZE, mr, &requests[i]);
				while (!err && !requests[i]);
			CHECK(!err || err == REMOTE_ERROR, "isend: %d", err);
			for (double end = now() + 60; round < 2 && !err;) { // until the other end is closed
				int done = 0;
				err = net_test(requests[N - 1], &done, NULL);
				if (done)
					break;
				CHECK(now() < end, "the sender does not notice");
			}
		}
		double begin = now();
		if (round % 2)
			CHECK(!net_dereg(comm, mr), "deregMr");
		close_comm(comm, rank == 0);
		CHECK(now() - begin < 5, "close took %.3f s", now() - begin);
		if (rank == 1) { // the same addresses, for something else
			CHECK(mmap(b, SIZE * N, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == b, "mmap");
			memset(b, 0xaa, SIZE * N);
			pause_ms(300);
			for (size_t i = 0; i < (size_t)SIZE * N; i++)
				CHECK(b[i] == 0xaa, "round %d: byte %zu was written after close", round, i);
		}
		meet();
		munmap(b, SIZE * N);
	}
	exchange();
}

// dead waits for the error of requests whose peer is dead.
static void dead(bool orphans)
{
	net_open();
	void *out = connection(0), *in = connection(1), *out_mr, *in_mr;
	unsigned char *b = map(1 << 20);
	CHECK(!net_reg(out, b, 1 << 20, &out_mr) && !net_reg(in, b, 1 << 20, &in_mr), "regMr");
	transfer(0, out, b, 1 << 20, 1 << 20, out_mr);
	int helper = 0;
	if (rank == 1) {
		if (orphans && (helper = fork()) == 0) { // holds the sockets, like a data loader
			signal(SIGPIPE, SIG_DFL);
			pause_ms(60000);
			_exit(0);
		}
		post(false, out, b, 1 << 20, out_mr);
		put(&helper, sizeof(helper));
		for (;;)
			pause();
	}
	take(&helper, sizeof(helper));
	peer_may_die = true;
	void *recv = post(false, in, b, 1 << 20, in_mr);
	kill(peer_pid, SIGKILL);
	void *send = NULL;
	int err = 0;
	for (double end = now() + 50; !err; pause_ms(1)) { // the send that the peer has granted may succeed while it is dying
		int done = 0;
		err = send ? net_test(send, &done, NULL) : net_isend(out, b, 1 << 20, out_mr, &send);
		if (done)
			send = NULL;
		CHECK(now() < end, "the sender gets no error");
	}
	CHECK(err == REMOTE_ERROR, "the sender gets %d", err);
	err = await_error(recv, 50);
	CHECK(err == REMOTE_ERROR, "the receiver gets %d", err);
	if (helper)
		kill(helper, SIGKILL);
	CHECK(!net_dereg(out, out_mr) && !net_dereg(in, in_mr), "deregMr");
	close_comm(out, true);
	close_comm(in, false);
	CHECK(!net_finalize(net_ctx), "finalize");
}

// test_killed: the death of the peer is a remote error on both directions.
void test_killed(void) { dead(false); }

// test_orphans: the same while a child of the peer holds its sockets open.
void test_orphans(void) { dead(true); }

// test_stopped: a peer that stops for seconds, as in a debugger, causes no error.
void test_stopped(void)
{
	net_open();
	void *comm = connection(0), *mr;
	unsigned char *b = map(1 << 20);
	CHECK(!net_reg(comm, b, 1 << 20, &mr), "regMr");
	for (int i = 0; i < 20; i++) {
		if (rank == 0) {
			fill(b, 1 << 20, (uint64_t)i);
			if (i == 5) {
				kill(peer_pid, SIGSTOP);
				if (fork() == 0) {
					pause_ms(4000);
					kill(peer_pid, SIGCONT);
					_exit(0);
				}
			}
		}
		CHECK(transfer(0, comm, b, 1 << 20, 1 << 20, mr) == 1 << 20 && same(b, 1 << 20, (uint64_t)i), "message %d differs", i);
		meet();
	}
	CHECK(!net_dereg(comm, mr), "deregMr");
	close_comm(comm, rank == 0);
}

// test_exit: a sender that exits after its last message is done, without closing anything, causes no error at the receiver.
void test_exit(void)
{
	enum { SIZE = 300 << 10, N = 16 };
	net_open();
	void *comm = connection(1), *mr, *requests[N];
	unsigned char *b = map(SIZE * N);
	CHECK(!net_reg(comm, b, SIZE * N, &mr), "regMr");
	for (int i = 0; i < N; i++) {
		if (rank == 1)
			fill(b + i * SIZE, SIZE, (uint64_t)i);
		requests[i] = post(rank == 1, comm, b + i * SIZE, SIZE, mr);
	}
	if (rank == 1) {
		for (int i = 0; i < N; i++)
			await(requests[i]);
		_exit(0);
	}
	waitpid(peer_pid, NULL, WNOWAIT);
	siginfo_t info;
	waitid(P_PID, (id_t)peer_pid, &info, WEXITED | WNOWAIT);
	for (int i = 0; i < N; i++)
		CHECK(await(requests[i]) == SIZE && same(b + i * SIZE, SIZE, (uint64_t)i), "message %d differs", i);
	CHECK(!net_dereg(comm, mr), "deregMr");
	close_comm(comm, false);
}

// test_fork: a child gets errors and no hang, and closing succeeds there; the parent goes on.
void test_fork(void)
{
	net_open();
	void *comm = connection(0), *mr, *request = NULL, *other = NULL;
	unsigned char b[4096];
	char handle[HANDLE];
	CHECK(!net_reg(comm, b, sizeof(b), &mr), "regMr");
	int child = fork();
	CHECK(child >= 0, "fork");
	if (child == 0) {
		alarm(30);
		peer_pid = 0;
		CHECK((rank ? net_irecv(comm, b, 8, mr, &request) : net_isend(comm, b, 8, mr, &request)) == 2, "a post in a child");
		CHECK(net_listen(handle, &other) == 2 && net_init(&other) == 2 && net_reg(comm, b, 8, &other) == 2, "calls in a child");
		CHECK(!net_dereg(comm, mr), "deregMr in a child");
		close_comm(comm, rank == 0);
		CHECK(!net_finalize(net_ctx), "finalize in a child");
		exit(0); // with exit handlers
	}
	int status = 0;
	CHECK(waitpid(child, &status, 0) == child && status == 0, "the child ended with %#x", status);
	transfer(0, comm, b, sizeof(b), sizeof(b), mr);
	CHECK(!net_dereg(comm, mr), "deregMr");
	close_comm(comm, rank == 0);
	exchange();
}

// resident is the resident memory of this process in KiB.
static long resident(void)
{
	char line[256];
	long kib = 0;
	FILE *f = fopen("/proc/self/status", "r");
	while (f && fgets(line, sizeof(line), f))
		sscanf(line, "VmRSS: %ld", &kib);
	if (f)
		fclose(f);
	return kib;
}

// test_many: a thousand connections. It prints the memory of one.
void test_many(void)
{
	enum { BATCH = 50 };
	const char *text = getenv("IBVERBX_TEST_COMMS");
	int n = text ? atoi(text) : 200;
	void **comms = calloc((size_t)n, sizeof(*comms)), **listeners = calloc((size_t)n, sizeof(*listeners));
	static char handles[BATCH][HANDLE];
	net_open();
	exchange();
	long before = resident();
	double begin = now();
	for (int at = 0; at < n; at += BATCH) {
		int end = at + BATCH < n ? at + BATCH : n;
		if (rank == 0) {
			for (int i = at; i < end; i++)
				CHECK(!net_listen(handles[i - at], &listeners[i]), "listen");
			put(handles, sizeof(handles));
		} else {
			take(handles, sizeof(handles));
		}
		for (int left = end - at; left > 0; pause_ms(1)) {
			for (int i = at; i < end; i++)
				if (!comms[i]) {
					CHECK(!(rank ? net_connect(handles[i - at], &comms[i]) : net_accept(listeners[i], &comms[i])), "connection %d", i);
					left -= comms[i] != NULL;
				}
			CHECK(now() - begin < 300, "%d connections are missing", left);
		}
		meet();
	}
	if (rank == 0)
		printf("%d connections in %.1f s, %ld KiB each\n", n, now() - begin, (resident() - before) / n);
	exchange();
	for (int i = 0; i < n; i++) {
		close_comm(comms[i], rank == 1);
		if (rank == 0)
			CHECK(!net_close_listen(listeners[i]), "closeListen");
	}
	CHECK(!net_finalize(net_ctx), "finalize");
}

static void *closing(void *comm)
{
	close_comm(comm, rank == 0);
	return NULL;
}

// test_split: a communicator that shares its parent's context begins to connect before the parent is finalized, and others do while the
// last connection of the context is closed.
void test_split(void)
{
	net_open();
	for (int round = 0; round < 20; round++) {
		char handle[HANDLE];
		void *comm = NULL, *listener = NULL;
		if (round > 0)
			CHECK(!net_init(&net_ctx), "init");
		if (rank == 1) {
			CHECK(!net_listen(handle, &listener), "listen");
			put(handle, HANDLE);
		} else {
			take(handle, HANDLE);
			CHECK(!net_connect(handle, &comm), "connect");
		}
		CHECK(!net_finalize(net_ctx), "finalize");
		for (double end = now() + 60; !comm; pause_ms(1)) {
			int err = rank == 0 ? net_connect(handle, &comm) : net_accept(listener, &comm);
			CHECK(!err, "round %d: a connection after finalize: %d", round, err);
			CHECK(now() < end, "no connection");
		}
		pthread_t thread;
		CHECK(!pthread_create(&thread, NULL, closing, comm), "pthread_create");
		if (listener)
			CHECK(!net_close_listen(listener), "closeListen");
		for (int i = 0; i < 3; i++)
			exchange();
		pthread_join(thread, NULL);
	}
}

// test_leave: a receiver that exits after its last message, without closing anything, causes no error at the sender, even if
// acknowledgements were lost.
void test_leave(void)
{
	enum { COMMS = 8, N = 16, SIZE = 20000 };
	void *comms[COMMS], *mr[COMMS], *requests[COMMS][N];
	unsigned char *b = map(COMMS * N * SIZE);
	net_open();
	for (int c = 0; c < COMMS; c++) {
		comms[c] = connection(0);
		CHECK(!net_reg(comms[c], b + c * N * SIZE, N * SIZE, &mr[c]), "regMr");
	}
	for (int i = 0; i < N; i++)
		for (int c = 0; c < COMMS; c++)
			requests[c][i] = post(rank == 0, comms[c], b + (c * N + i) * SIZE, SIZE, mr[c]);
	for (int i = 0; i < N; i++)
		for (int c = 0; c < COMMS; c++)
			CHECK(await(requests[c][i]) == SIZE, "the size of a message");
	if (rank == 1)
		exit(0);
	for (int c = 0; c < COMMS; c++) {
		CHECK(!net_dereg(comms[c], mr[c]), "deregMr");
		close_comm(comms[c], true);
	}
}

// test_shared: a connection keeps working after its context was finalized, as after a split with shared resources, and the finalized
// context still makes connections.
void test_shared(void)
{
	net_open();
	void *comm = connection(0), *mr;
	unsigned char *b = map(1 << 20);
	CHECK(!net_reg(comm, b, 1 << 20, &mr), "regMr");
	CHECK(!net_finalize(net_ctx), "finalize");
	for (int i = 0; i < 50; i++) {
		if (rank == 0)
			fill(b, 1 << 20, (uint64_t)i);
		CHECK(transfer(0, comm, b, 1 << 20, 1 << 20, mr) == 1 << 20 && same(b, 1 << 20, (uint64_t)i), "message %d differs", i);
		meet();
	}
	exchange();
	CHECK(!net_dereg(comm, mr), "deregMr");
	close_comm(comm, rank == 0);
	exchange();
	CHECK(!net_finalize(net_ctx), "finalize again");
}
