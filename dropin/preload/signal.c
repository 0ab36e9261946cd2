// A second library to preload. It has no symbol versions, so that its functions stand in front of those of libc.
//
// The program's threads run Go code inside the verbs, on the stacks of goroutines. A signal handler needs more room
// than those have. Go gives each thread that calls it an alternate signal stack, so all handlers must use it.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stddef.h>

typedef int (*sigaction_t)(int, const struct sigaction *, struct sigaction *);

static sigaction_t next_sigaction(void)
{
	static sigaction_t next;
	if (!next)
		next = (sigaction_t)dlsym(RTLD_NEXT, "sigaction");
	return next;
}

int sigaction(int sig, const struct sigaction *act, struct sigaction *old)
{
	struct sigaction on_stack;
	if (act && act->sa_handler != SIG_DFL && act->sa_handler != SIG_IGN) {
		on_stack = *act;
		on_stack.sa_flags |= SA_ONSTACK;
		act = &on_stack;
	}
	return next_sigaction()(sig, act, old);
}

sighandler_t signal(int sig, sighandler_t handler)
{
	struct sigaction act = {.sa_handler = handler, .sa_flags = SA_RESTART}, old;
	if (handler == SIG_ERR) {
		errno = EINVAL;
		return SIG_ERR;
	}
	return sigaction(sig, &act, &old) ? SIG_ERR : old.sa_handler;
}
