// ibverbx-nccl-check loads the plugin as NCCL does and uses it between two processes, without NCCL, CUDA or MPI.
//
//	ibverbx-nccl-check [-v VERSION] PLUGIN TEST
#define _GNU_SOURCE
#include "net.h"
#include "tests.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

extern int channel;

static const struct {
	const char *name;
	void (*run)(void);
} tests[] = {
	{"check", test_check}, {"load", test_load}, {"refused", test_refused}, {"connect", test_connect}, {"sizes", test_sizes}, {"order", test_order},
	{"abort", test_abort},
	{"killed", test_killed}, {"orphans", test_orphans}, {"stopped", test_stopped}, {"exit", test_exit}, {"fork", test_fork}, {"rails", test_rails},
	{"norails", test_norails}, {"regions", test_regions}, {"torn", test_torn}, {"many", test_many}, {"shared", test_shared}, {"split", test_split}, {"speed", test_speed},
	{"flow", test_flow},     {"leave", test_leave},   {"parts", test_parts},
};

int main(int argc, char **argv)
{
	int opt;
	while ((opt = getopt(argc, argv, "v:")) == 'v')
		net_version = atoi(optarg);
	if (opt != -1 || argc != optind + 2) {
		fprintf(stderr, "usage: %s [-v 8..12] PLUGIN TEST\n", argv[0]);
		return 2;
	}
	net_path = argv[optind];
	void (*run)(void) = NULL;
	for (size_t i = 0; i < sizeof(tests) / sizeof(*tests); i++)
		if (!strcmp(tests[i].name, argv[optind + 1]))
			run = tests[i].run;
	if (!run) {
		fprintf(stderr, "%s: no such test\n", argv[optind + 1]);
		return 2;
	}
	int pair[2];
	CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, pair), "socketpair");
	signal(SIGPIPE, SIG_IGN);
	int parent = getpid();
	int child = fork();
	CHECK(child >= 0, "fork");
	rank = child == 0;
	peer_pid = rank ? parent : child;
	channel = pair[rank];
	close(pair[!rank]);
	if (rank) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		run();
		return 0;
	}
	run();
	int status = 0;
	waitpid(child, &status, 0);
	if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL && peer_may_die)
		return 0;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
