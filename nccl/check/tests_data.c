// Tests of data: sizes, order, rails that fail, regions, torn words.
#define _GNU_SOURCE
#include "net.h"
#include "tests.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MARGIN = 4096 };

// test_sizes: every byte of messages of all sizes arrives, in receives of other sizes and at odd addresses, and no byte behind them changes.
void test_sizes(void)
{
	static const size_t sizes[] = {0, 1, 127, 128, 129, 4096, 16383, 16384, 16385, 512 << 10, 1 << 20, 64 << 20};
	const char *large = getenv("IBVERBX_TEST_LONG");
	size_t most = large && *large == '1' ? 1ul << 30 : 64ul << 20;
	net_open();
	void *comm = connection(0), *mr;
	unsigned char *b = map(most + 2 * MARGIN);
	CHECK(!net_reg(comm, b, most + 2 * MARGIN, &mr), "regMr");
	for (size_t k = 0; k <= sizeof(sizes) / sizeof(*sizes); k++) {
		size_t n = k < sizeof(sizes) / sizeof(*sizes) ? sizes[k] : most;
		for (int variant = 0; variant < 3; variant++) {
			size_t room = variant == 0 ? n : variant == 1 ? n + 100 : n / 2;
			size_t want = n < room ? n : room;
			unsigned char *data = b + 64 + (k * 3 + (size_t)variant) % 61;
			if (rank == 0)
				fill(data, n, k);
			else
				memset(data, 0xee, want + 1024);
			int got = transfer(0, comm, data, n, room, mr);
			CHECK(got == (int)want, "%zu bytes in a receive of %zu: size %d", n, room, got);
			if (rank == 1) {
				CHECK(same(data, want & ~7ul, k), "%zu bytes in a receive of %zu: the data differs", n, room);
				for (int i = 0; i < 1024; i++)
					CHECK(data[want + (size_t)i] == 0xee, "%zu bytes in a receive of %zu: byte %d behind it has changed", n, room, i);
			}
			meet();
		}
	}
	CHECK(!net_dereg(comm, mr), "deregMr");
	CHECK(rank == 0 ? !net_close_send(comm) : !net_close_recv(comm), "close");
	CHECK(!net_finalize(net_ctx), "finalize");
}

// test_order: sends match receives in posting order with 64 outstanding, whichever side is first, and requests may be tested in any order.
void test_order(void)
{
	enum { SLOT = 9001 };
	net_open();
	void *comm = connection(1), *mr, *requests[IN_FLIGHT], *early = NULL;
	unsigned char *b = map(IN_FLIGHT * SLOT);
	CHECK(!net_reg(comm, b, IN_FLIGHT * SLOT, &mr), "regMr");
	if (rank == 1) { // without a receive there is no request
		for (int i = 0; i < 1000; i++)
			CHECK(!net_isend(comm, b, 8, mr, &early) && !early, "isend without a receive");
	}
	meet();
	for (int round = 0; round < 20; round++) {
		for (int i = 0; i < IN_FLIGHT; i++) {
			if (rank == 1)
				fill(b + i * SLOT, SLOT, (uint64_t)(round * IN_FLIGHT + i));
			requests[i] = post(rank == 1, comm, b + i * SLOT, (size_t)(SLOT - i), mr);
		}
		if (rank == 0) {
			void *more = NULL;
			CHECK(!net_irecv(comm, b, 8, mr, &more) && !more, "receive 65 of 64");
		}
		for (int i = 0; i < IN_FLIGHT; i++) {
			int k = round % 2 ? i : IN_FLIGHT - 1 - i, done = 0;
			if (i % 7 == 3) // sizes may be NULL
				while (!done)
					CHECK(!net_test(requests[k], &done, NULL), "test");
			else
				CHECK(await(requests[k]) == SLOT - k, "the size of message %d", k);
			if (rank == 0)
				CHECK(same(b + k * SLOT, (size_t)(SLOT - k) & ~7ul, (uint64_t)(round * IN_FLIGHT + k)), "round %d: message %d differs", round, k);
		}
		meet();
	}
	CHECK(!net_dereg(comm, mr), "deregMr");
	CHECK(rank == 1 ? !net_close_send(comm) : !net_close_recv(comm), "close");
}

// stream is a sequence of messages, with as many outstanding as NCCL has.
struct stream {
	void *comm, *mr;
	unsigned char *b;
	void *requests[8];
	size_t slot;
	int posted, done;
	bool send;
};

static void stream_open(struct stream *s, int from, size_t slot)
{
	memset(s, 0, sizeof(*s));
	s->comm = connection(from);
	s->send = rank == from;
	s->slot = slot;
	s->b = map(8 * slot);
	CHECK(!net_reg(s->comm, s->b, 8 * slot, &s->mr), "regMr");
}

static void stream_close(struct stream *s)
{
	CHECK(!net_dereg(s->comm, s->mr), "deregMr");
	CHECK(s->send ? !net_close_send(s->comm) : !net_close_recv(s->comm), "close");
}

// stream_step posts what fits, up to message `end`, and checks completed messages. It returns their number.
static int stream_step(struct stream *s, int end)
{
	while (s->posted < end && s->posted - s->done < 8) {
		unsigned char *at = s->b + (size_t)(s->posted % 8) * s->slot;
		if (s->send)
			fill(at, s->slot, (uint64_t)s->posted);
		void *request = NULL;
		int err = s->send ? net_isend(s->comm, at, s->slot, s->mr, &request) : net_irecv(s->comm, at, s->slot, s->mr, &request);
		CHECK(!err, "message %d: post: %d", s->posted, err);
		if (!request)
			break;
		s->requests[s->posted++ % 8] = request;
	}
	while (s->done < s->posted) {
		int done = 0, size = 0;
		int err = net_test(s->requests[s->done % 8], &done, &size);
		CHECK(!err, "message %d: test: %d", s->done, err);
		if (!done)
			break;
		CHECK(size == (int)s->slot, "message %d has %d bytes", s->done, size);
		if (!s->send)
			CHECK(same(s->b + (size_t)(s->done % 8) * s->slot, s->slot, (uint64_t)s->done), "message %d differs", s->done);
		s->done++;
	}
	return s->done;
}

// test_rails: rails go down under traffic in both directions and come back, on either side. There is no error, and every byte is right.
void test_rails(void)
{
	struct stream a, b;
	net_open();
	stream_open(&a, 0, 256 << 10);
	stream_open(&b, 1, 64 << 10);
	for (int change = 0; change < 8; change++) {
		// Rank 0 and rank 1 take turns; each rail is down while one batch moves, and up again for the next.
		if (rank == change / 2 % 2)
			CHECK(!net_rail(change / 4 % 2, change % 2), "rail");
		double end = now() + 60;
		int want_a = (change + 1) * 60, want_b = (change + 1) * 120;
		while ((stream_step(&a, want_a) < want_a) + (stream_step(&b, want_b) < want_b))
			CHECK(now() < end, "change %d: %d and %d messages", change, a.done, b.done);
		meet();
	}
	stream_close(&a);
	stream_close(&b);
}

// move moves messages on n streams until each has moved `end`.
static void move(struct stream *streams, int n, int end)
{
	double limit = now() + 60;
	for (int left = 1; left;) {
		left = 0;
		for (int i = 0; i < n; i++)
			left += stream_step(&streams[i], end) < end;
		CHECK(now() < limit, "%d of %d streams have not moved %d messages", left, n, end);
	}
}

// test_parts: several connections in both directions move data while rails fail and recover, and while other connections are closed with
// requests outstanding. IBVERBX_TEST_PARTS sets the number of parts that serve them.
void test_parts(void)
{
	enum { STREAMS = 4, BATCH = 20 };
	struct stream streams[STREAMS], other;
	net_open();
	for (int i = 0; i < STREAMS; i++)
		stream_open(&streams[i], i % 2, (size_t)(64 + 64 * (i / 2)) << 10);
	for (int round = 0; round < 8; round++) {
		stream_open(&other, round % 2, 1 << 20);
		if (rank == round / 4)
			CHECK(!net_rail(round / 2 % 2, round % 2), "rail");
		for (int i = 0; i < 3; i++) {
			stream_step(&other, 8);
			move(streams, STREAMS, (round * 4 + i + 1) * BATCH);
		}
		meet(); // the other end is not closed before
		CHECK(other.send ? !net_close_send(other.comm) : !net_close_recv(other.comm), "close");
		move(streams, STREAMS, (round * 4 + 4) * BATCH);
		meet();
	}
	for (int i = 0; i < STREAMS; i++)
		stream_close(&streams[i]);
	CHECK(!net_finalize(net_ctx), "finalize");
}

// test_norails: with all rails down, requests fail with a remote error within the deadline.
void test_norails(void)
{
	net_open();
	void *comm = connection(0), *mr;
	unsigned char *b = map(1 << 20);
	CHECK(!net_reg(comm, b, 1 << 20, &mr), "regMr");
	transfer(0, comm, b, 4096, 4096, mr);
	void *request = NULL;
	if (rank == 1)
		request = post(false, comm, b, 1 << 20, mr);
	meet();
	pause_ms(200); // for the grant
	if (rank == 0) {
		for (int rail = 0; rail < 2; rail++)
			CHECK(!net_rail(rail, 0), "rail");
		request = post(true, comm, b, 1 << 20, mr);
	}
	int err = await_error(request, 50);
	CHECK(err == REMOTE_ERROR, "the error is %d, want %d", err, REMOTE_ERROR);
	void *more = NULL;
	err = rank ? net_irecv(comm, b, 8, mr, &more) : net_isend(comm, b, 8, mr, &more);
	CHECK(err == REMOTE_ERROR, "a later post: %d, want %d", err, REMOTE_ERROR);
	meet();
	CHECK(!net_dereg(comm, mr), "deregMr");
	CHECK(rank ? !net_close_recv(comm) : !net_close_send(comm), "close");
}

static void *registering;
static int stop_registering;

static void *registrations(void *comm)
{
	unsigned char *b = map(1 << 20);
	while (!__atomic_load_n(&stop_registering, __ATOMIC_ACQUIRE)) {
		void *mr;
		CHECK(!net_reg(comm, b + 100, (1 << 20) - 300, &mr), "regMr");
		CHECK(!net_dereg(comm, mr), "deregMr");
	}
	return NULL;
}

// test_regions: a thread registers and deregisters memory while another one transfers.
void test_regions(void)
{
	struct stream s;
	pthread_t thread;
	net_open();
	stream_open(&s, 0, 100 << 10);
	registering = s.comm;
	CHECK(!pthread_create(&thread, NULL, registrations, registering), "pthread_create");
	double end = now() + 60;
	while (stream_step(&s, 500) < 500)
		CHECK(now() < end, "%d messages", s.done);
	__atomic_store_n(&stop_registering, 1, __ATOMIC_RELEASE);
	pthread_join(thread, NULL);
	stream_close(&s);
}

struct probe {
	volatile uint64_t *words;
	size_t n;
	int stop, torn;
};

// look reads the words of a buffer while it is written. Each is the number of its message in both halves.
static void *look(void *arg)
{
	struct probe *p = arg;
	while (!__atomic_load_n(&p->stop, __ATOMIC_ACQUIRE))
		for (size_t i = 0; i < p->n; i += 17) {
			uint64_t x = p->words[i];
			if ((uint32_t)x != x >> 32)
				__atomic_add_fetch(&p->torn, 1, __ATOMIC_RELAXED);
		}
	return NULL;
}

// test_torn: a thread that reads aligned words of a buffer while it is written, as protocol LL does, sees no torn word.
void test_torn(void)
{
	enum { WORDS = 8192 };
	net_open();
	void *comm = connection(0), *mr;
	uint64_t *b = map(WORDS * 8);
	struct probe p = {b, WORDS, 0, 0};
	pthread_t thread;
	CHECK(!net_reg(comm, b, WORDS * 8, &mr), "regMr");
	if (rank == 1)
		CHECK(!pthread_create(&thread, NULL, look, &p), "pthread_create");
	for (uint64_t round = 1; round <= 500; round++) {
		if (rank == 0)
			for (int i = 0; i < WORDS; i++)
				b[i] = round << 32 | round;
		transfer(0, comm, (unsigned char *)b, WORDS * 8, WORDS * 8, mr);
	}
	if (rank == 1) {
		__atomic_store_n(&p.stop, 1, __ATOMIC_RELEASE);
		pthread_join(thread, NULL);
		CHECK(p.torn == 0, "%d torn words", p.torn);
	}
	CHECK(!net_dereg(comm, mr), "deregMr");
	CHECK(rank ? !net_close_recv(comm) : !net_close_send(comm), "close");
}

