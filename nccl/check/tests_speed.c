// Figures: the plugin beside TCP.
#define _GNU_SOURCE
#include "net.h"
#include "tests.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

// tcp_pair connects the two processes over loopback.
static int tcp_pair(void)
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
	CHECK(s >= 0 && !setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)), "TCP");
	return s;
}

static void tcp_move(int s, unsigned char *b, size_t n, bool send)
{
	for (size_t done = 0; done < n;) {
		ssize_t k = send ? write(s, b + done, n - done) : read(s, b + done, n - done);
		CHECK(k > 0, "TCP");
		done += (size_t)k;
	}
}

// test_speed prints the time of a round trip with messages of several sizes, over the plugin and over TCP, alternated.
void test_speed(void)
{
	enum { MOST = 4 << 20, ROUNDS = 3 };
	net_open();
	void *out = connection(0), *in = connection(1), *out_mr, *in_mr;
	void *send = rank ? in : out, *recv = rank ? out : in;
	unsigned char *a = map(MOST), *b = map(MOST);
	CHECK(!net_reg(send, a, MOST, &out_mr) && !net_reg(recv, b, MOST, &in_mr), "regMr");
	int s = tcp_pair();
	if (rank == 0)
		printf("%10s %12s %12s %8s\n", "bytes", "plugin (us)", "TCP (us)", "ratio");
	for (size_t n = 8; n <= MOST; n *= 8) {
		int count = n < 64 << 10 ? 1000 : 50;
		double best[2] = {1e9, 1e9};
		for (int round = 0; round < 2 * ROUNDS; round++) {
			meet();
			double begin = now();
			for (int i = 0; i < count; i++) {
				if (round % 2) {
					tcp_move(s, rank ? b : a, n, rank == 0);
					tcp_move(s, rank ? a : b, n, rank == 1);
					continue;
				}
				void *r = post(false, recv, b, n, in_mr);
				if (rank == 1)
					await(r);
				await(post(true, send, a, n, out_mr));
				if (rank == 0)
					await(r);
			}
			double took = (now() - begin) / count * 1e6;
			if (took < best[round % 2])
				best[round % 2] = took;
		}
		if (rank == 0)
			printf("%10zu %12.1f %12.1f %8.2f\n", n, best[0], best[1], best[1] / best[0]);
	}
	meet();
}
