// Figures: the plugin beside TCP, driven as NCCL drives its sockets: one thread per process, non-blocking calls, no helper threads.
#define _GNU_SOURCE
#include "net.h"
#include "tests.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
	AHEAD = 8,    // requests per connection, as in NCCL
	INLINE = 128, // bytes that NCCL's sockets send with the size
	CHANNELS = 16,
	ROUNDS = 3,
};

// pipe is one direction of a connection, over the plugin or over TCP. Message i uses slot i modulo AHEAD of the buffer.
struct pipe {
	bool send;
	int posted, done;
	size_t slot, length;
	unsigned char *b;
	void *comm, *mr, *requests[AHEAD]; // of the plugin
	int fd;                            // of TCP
	size_t offset;                     // bytes of the oldest message that were moved, with its header
	unsigned char header[4 + INLINE];
};

// tcp_connect connects the two processes over loopback.
static int tcp_connect(void)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t n = sizeof(a);
	int s = socket(AF_INET, SOCK_STREAM, 0), on = 1;
	if (rank == 0) {
		CHECK(!bind(s, (void *)&a, n) && !listen(s, 1) && !getsockname(s, (void *)&a, &n), "listen");
		put(&a.sin_port, sizeof(a.sin_port));
		int c = accept(s, NULL, NULL);
		close(s);
		s = c;
	} else {
		take(&a.sin_port, sizeof(a.sin_port));
		CHECK(!connect(s, (void *)&a, n), "connect");
	}
	CHECK(s >= 0 && !setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) && !fcntl(s, F_SETFL, O_NONBLOCK), "TCP");
	return s;
}

// tcp_part moves what a socket takes of n bytes, of which p->offset - from were moved. It reports whether all are.
static bool tcp_part(struct pipe *p, unsigned char *data, size_t from, size_t n)
{
	while (p->offset < from + n) {
		size_t at = p->offset - from;
		ssize_t k = p->send ? send(p->fd, data + at, n - at, MSG_DONTWAIT | MSG_NOSIGNAL) : recv(p->fd, data + at, n - at, MSG_DONTWAIT);
		if (k < 0 && (errno == EAGAIN || errno == EINTR))
			return false;
		CHECK(k > 0, "TCP");
		p->offset += (size_t)k;
	}
	return true;
}

// tcp_test makes progress on the oldest message: its size, with the data of a short message, then the rest.
static bool tcp_test(struct pipe *p)
{
	unsigned char *data = p->b + (size_t)(p->done % AHEAD) * p->slot;
	uint32_t size = (uint32_t)p->length;
	size_t inlined = p->length <= INLINE ? p->length : 0;
	if (p->send && p->offset == 0) {
		memcpy(p->header, &size, 4);
		memcpy(p->header + 4, data, inlined);
	}
	size_t first = p->send ? 4 + inlined : 4;
	if (p->offset < first && !tcp_part(p, p->header, 0, first))
		return false;
	if (!p->send)
		CHECK(!memcmp(p->header, &size, 4), "TCP: a size");
	if (!tcp_part(p, data + (p->send ? inlined : 0), first, p->length - (p->send ? inlined : 0)))
		return false;
	p->offset = 0;
	return true;
}

static void pipe_open(struct pipe *p, bool tcp, int from, size_t slot)
{
	memset(p, 0, sizeof(*p));
	p->send = rank == from;
	p->slot = slot;
	p->b = map(AHEAD * slot);
	memset(p->b, from + 1, AHEAD * slot);
	if (tcp) {
		p->fd = tcp_connect();
		return;
	}
	p->comm = connection(from);
	CHECK(!net_reg(p->comm, p->b, AHEAD * slot, &p->mr), "regMr");
}

// pipe_step posts messages up to number `end`, at most AHEAD of the oldest, and completes what is done. It returns the number of completed ones.
static int pipe_step(struct pipe *p, int end)
{
	while (p->posted < end && p->posted - p->done < AHEAD) {
		if (p->comm) {
			unsigned char *at = p->b + (size_t)(p->posted % AHEAD) * p->slot;
			void *request = NULL;
			int err = p->send ? net_isend(p->comm, at, p->length, p->mr, &request) : net_irecv(p->comm, at, p->length, p->mr, &request);
			CHECK(!err, "post: %d", err);
			if (!request)
				break;
			p->requests[p->posted % AHEAD] = request;
		}
		p->posted++;
	}
	while (p->done < p->posted) {
		int done = 0, size = (int)p->length;
		if (!p->comm)
			done = tcp_test(p);
		else
			CHECK(!net_test(p->requests[p->done % AHEAD], &done, &size), "test");
		if (!done)
			break;
		CHECK(size == (int)p->length, "a message of %d bytes, want %zu", size, p->length);
		p->done++;
	}
	return p->done;
}

static void pipe_rewind(struct pipe *p, size_t length)
{
	p->posted = p->done = 0;
	p->length = length;
}

// round_trips returns the time of a round trip in microseconds. Receives are posted ahead, as NCCL does.
static double round_trips(struct pipe *out, struct pipe *in, size_t length, int count)
{
	pipe_rewind(out, length);
	pipe_rewind(in, length);
	meet();
	double begin = now();
	for (int i = 0; i < count; i++) {
		int want = rank ? i : i + 1; // rank 1 responds
		for (double end = begin + 120;;) {
			int moved = out->done + in->done;
			if (pipe_step(in, count) > i)
				want = i + 1;
			pipe_step(out, want);
			if (in->done > i && out->posted > i)
				break;
			if (moved == out->done + in->done)
				sched_yield(); // as NCCL does
			CHECK(now() < end, "round trip %d", i);
		}
	}
	double took = (now() - begin) / count * 1e6;
	while (pipe_step(out, count) < count) // an acknowledgement
		sched_yield();
	return took;
}

static double cpu_time(void)
{
	struct rusage u;
	getrusage(RUSAGE_SELF, &u);
	return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

// stream_all moves count messages on each of n channels in both directions at once. It returns the rate per direction in GB/s.
static double stream_all(struct pipe (*pipes)[2], int n, size_t length, int count, double *cpu)
{
	for (int c = 0; c < n; c++)
		for (int k = 0; k < 2; k++)
			pipe_rewind(&pipes[c][k], length);
	meet();
	double begin = now(), used = cpu_time();
	for (int left = 1; left;) {
		int moved = 0;
		left = 0;
		for (int c = 0; c < n; c++)
			for (int k = 0; k < 2; k++) {
				int before = pipes[c][k].done;
				moved += pipe_step(&pipes[c][k], count) - before;
				left += count - pipes[c][k].done;
			}
		if (!moved)
			sched_yield();
		CHECK(now() < begin + 120, "%d messages are missing", left);
	}
	double took = now() - begin;
	*cpu = (cpu_time() - used) / took;
	meet();
	return (double)length * count * n / took / 1e9;
}

static int number(const char *name, int fallback)
{
	const char *text = getenv(name);
	return text ? atoi(text) : fallback;
}

static int compare(const void *a, const void *b) { return *(const double *)a < *(const double *)b ? -1 : *(const double *)a > *(const double *)b; }

// middle returns the median.
static double middle(double *x)
{
	qsort(x, ROUNDS, sizeof(*x), compare);
	return x[ROUNDS / 2];
}

// test_speed prints round trips of messages of several sizes, over the plugin and over TCP, alternated: medians.
void test_speed(void)
{
	enum { MOST = 4 << 20 };
	struct pipe p[2][2]; // of the plugin and of TCP, from rank 0 and from rank 1
	net_open();
	for (int kind = 0; kind < 2; kind++)
		for (int from = 0; from < 2; from++)
			pipe_open(&p[kind][from], kind, from, MOST);
	if (rank == 0)
		printf("%10s %12s %12s %8s\n", "bytes", "plugin (us)", "TCP (us)", "ratio");
	for (size_t n = 8; n <= MOST; n *= n < 4096 ? 8 : 4) {
		int count = n < 64 << 10 ? 4000 : 200;
		double took[2][ROUNDS], mid[2];
		for (int i = 0; i < ROUNDS; i++)
			for (int kind = 0; kind < 2; kind++)
				took[kind][i] = round_trips(&p[kind][rank], &p[kind][!rank], n, count);
		for (int kind = 0; kind < 2; kind++)
			mid[kind] = middle(took[kind]);
		if (rank == 0)
			printf("%10zu %12.1f %12.1f %8.2f\n", n, mid[0], mid[1], mid[1] / mid[0]);
		fflush(stdout);
	}
	meet();
}

// test_flow prints the rate of streams as in an all_reduce: IBVERBX_TEST_CHANNELS channels (2), messages of up to IBVERBX_TEST_CHUNK KiB (512),
// 8 requests per connection, both directions at once. cpu is the number of busy cores of rank 0.
void test_flow(void)
{
	static struct pipe p[2][CHANNELS][2];
	int channels = number("IBVERBX_TEST_CHANNELS", 2);
	size_t most = (size_t)number("IBVERBX_TEST_CHUNK", 512) << 10;
	CHECK(channels > 0 && channels <= CHANNELS, "1 to %d channels", CHANNELS);
	net_open();
	for (int kind = 0; kind < 2; kind++)
		for (int c = 0; c < channels; c++)
			for (int from = 0; from < 2; from++)
				pipe_open(&p[kind][c][from], kind, from, most);
	if (rank == 0)
		printf("%10s %14s %8s %14s %8s %8s\n", "bytes", "plugin (GB/s)", "cpu", "TCP (GB/s)", "cpu", "ratio");
	for (size_t n = 4 << 10; n <= most; n *= n < 64 << 10 ? 4 : 2) {
		double rate[2][ROUNDS], cpu[2] = {0}, mid[2];
		int count = (int)(((n < 64 << 10 ? 32 : 256) << 20) / n / (size_t)channels) + 1;
		for (int i = 0; i < ROUNDS; i++)
			for (int kind = 0; kind < 2; kind++)
				rate[kind][i] = stream_all(p[kind], channels, n, count, &cpu[kind]);
		for (int kind = 0; kind < 2; kind++)
			mid[kind] = middle(rate[kind]);
		if (rank == 0)
			printf("%10zu %14.2f %8.2f %14.2f %8.2f %8.2f\n", n, mid[0], cpu[0], mid[1], cpu[1], mid[0] / mid[1]);
		fflush(stdout);
	}
	meet();
}
