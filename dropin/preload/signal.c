// Signal handlers in a process with a Go runtime. A second library to preload: it has no symbol versions, so that its functions stand in
// front of those of libc.
//
// Inside a verb, a program thread runs Go code on a goroutine stack. A handler has little stack there, and the Go runtime does not survive
// one that calls exit, siglongjmp or a verb. So caught stands in for the program's handlers, on the alternate stack that Go sets for each
// thread that calls it. During a call into Go it defers the signal: it stores it and blocks further ones, and ibx_leave runs the handler.
// Blocking calls wait outside of Go. There, caught runs the handler at once, on the stack that the program expects.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

typedef int (*sigaction_t)(int, const struct sigaction *, struct sigaction *);
typedef void (*handler_t)(int, siginfo_t *, void *);

// The shim calls ibx_wrap once it has loaded the core, and ibx_enter and ibx_leave around each call into Go.
void ibx_wrap(void);
void ibx_enter(void);
void ibx_leave(void);

// The first call of a thread into Go unblocks signals once, so that a second one may be deferred.
enum { max_deferred = 8 };

// self is the state of the calling thread. It is allocated with the thread, so that handlers can use it.
static __thread struct {
	// depth counts nested calls into Go, and deferring the nested handlers that defer a signal.
	volatile int depth, deferring;
	// held is set while this file blocks signals. outside is the mask to restore.
	volatile bool held;
	volatile int count;
	uint64_t outside;
	siginfo_t deferred[max_deferred];
	// known is set once arm has seen whether the program has an alternate stack, and arming until Go has set one.
	bool known, arming;
	// moving is set while alternate, the alternate stack, is disabled. inside is the mask of the moved handler.
	volatile bool moving;
	stack_t alternate;
	uint64_t inside;
	// disarmed is set while a handler runs on the alternate stack, which the kernel then does not use again.
	volatile bool disarmed;
} self __attribute__((tls_model("initial-exec")));

static volatile bool wrapping;

// program holds the program's handlers, each with the flags that caught does not have, in bits that are 0 in an address.
static uintptr_t program[NSIG];
static const uintptr_t onstack = (uintptr_t)1 << 63, siginfo = (uintptr_t)1 << 62, oneshot = (uintptr_t)1 << 61;
static const uintptr_t nodefer = (uintptr_t)1 << 60, address = ((uintptr_t)1 << 60) - 1;

static sigaction_t next_sigaction(void)
{
	static sigaction_t next;
	if (!next)
		next = (sigaction_t)dlsym(RTLD_NEXT, "sigaction");
	return next;
}

// Masks are those of the kernel: 64 bits at the beginning of a sigset_t. In a signal frame, other data follows them.
#define BIT(sig) ((uint64_t)1 << ((sig)-1))
static const uint64_t faults = BIT(SIGSEGV) | BIT(SIGBUS) | BIT(SIGFPE) | BIT(SIGILL) | BIT(SIGTRAP) | BIT(SIGSYS);
static const uint64_t of_libc = BIT(32) | BIT(33);

static uint64_t to_bits(const sigset_t *set)
{
	uint64_t bits;
	memcpy(&bits, set, sizeof(bits));
	return bits;
}

// change_mask is pthread_sigmask. It returns the mask before.
static uint64_t change_mask(int how, uint64_t bits)
{
	sigset_t set, old;
	sigemptyset(&set);
	memcpy(&set, &bits, sizeof(bits));
	pthread_sigmask(how, &set, &old);
	return to_bits(&old);
}

static void set_frame_mask(ucontext_t *uc, uint64_t bits) { memcpy(&uc->uc_sigmask, &bits, sizeof(bits)); }

// fault reports whether the thread caused the signal itself, so that it cannot continue before the handler has run.
static bool fault(const siginfo_t *info) { return BIT(info->si_signo) & faults && info->si_code > 0; }

// resend sends a signal to this thread again.
static void resend(siginfo_t *info)
{
	long thread = syscall(SYS_gettid);
	if (syscall(SYS_rt_tgsigqueueinfo, getpid(), thread, info->si_signo, info))
		syscall(SYS_tgkill, getpid(), thread, info->si_signo); // the queue is full
}

// defer stores a signal for ibx_leave and blocks others until then. A nested call returns to its caller with signals blocked.
static bool defer(const siginfo_t *info, ucontext_t *uc)
{
	int nested = self.deferring++;
	int at = __atomic_fetch_add(&self.count, 1, __ATOMIC_RELAXED);
	bool fits = at < max_deferred;
	if (fits) {
		uint64_t mask = to_bits(&uc->uc_sigmask);
		self.deferred[at] = *info;
		self.held = true;
		if (!nested)
			self.outside = mask;
		set_frame_mask(uc, mask | ~(faults | of_libc));
	} else {
		self.count = max_deferred;
	}
	self.deferring = nested;
	return fits;
}

static bool within(const stack_t *stack, uintptr_t sp) { return sp - (uintptr_t)stack->ss_sp < stack->ss_size; }

static uintptr_t interrupted(const ucontext_t *uc)
{
#ifdef __x86_64__
	return (uintptr_t)uc->uc_mcontext.gregs[REG_RSP];
#else
	return (uintptr_t)uc->uc_mcontext.sp;
#endif
}

// move leaves the alternate stack unless the program wants the handler there: it disables the stack and sends the signal again. Real-time
// signals stay, because those in the queue would overtake this one.
static bool move(siginfo_t *info, ucontext_t *uc, uintptr_t word)
{
	if (uc->uc_stack.ss_flags & SS_DISABLE || !within(&uc->uc_stack, (uintptr_t)__builtin_frame_address(0)))
		return false;
	self.alternate = uc->uc_stack;
	if (word & onstack || info->si_signo >= SIGRTMIN || within(&uc->uc_stack, interrupted(uc)))
		return false;
	self.inside = change_mask(SIG_BLOCK, ~(faults | of_libc));
	self.outside = to_bits(&uc->uc_sigmask);
	self.moving = true;
	set_frame_mask(uc, (self.outside | ~(faults | of_libc)) & ~BIT(info->si_signo));
	uc->uc_stack.ss_flags = SS_DISABLE;
	resend(info);
	return true;
}

// moved completes a move.
static void moved(uint64_t mask)
{
	sigaltstack(&self.alternate, NULL);
	self.moving = false;
	change_mask(SIG_SETMASK, mask);
}

// jumped reports whether a handler has left the alternate stack with siglongjmp, and arms the stack again.
static bool jumped(uintptr_t sp)
{
	if (!self.disarmed || within(&self.alternate, sp))
		return false;
	if (!within(&self.alternate, (uintptr_t)__builtin_frame_address(0)))
		sigaltstack(&self.alternate, NULL);
	self.disarmed = false; // last: a handler may jump out of this function, too
	return true;
}

// run calls the program's handler.
static void run(int sig, siginfo_t *info, void *uc, uintptr_t word)
{
	const struct sigaction by_default = {.sa_handler = SIG_DFL};
	if (word & oneshot && __atomic_compare_exchange_n(&program[sig], &word, 0, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
		next_sigaction()(sig, &by_default, NULL);
	if (word & nodefer)
		change_mask(SIG_UNBLOCK, BIT(sig));
	if (word) {
		((handler_t)(word & address))(sig, info, uc);
		return;
	}
	next_sigaction()(sig, &by_default, NULL); // SA_RESETHAND, and an earlier signal is resetting the action
	resend(info);
}

static void caught(int sig, siginfo_t *info, void *context)
{
	ucontext_t *uc = context;
	int err = errno;
	uintptr_t word = __atomic_load_n(&program[sig], __ATOMIC_SEQ_CST);
	if (jumped(interrupted(uc)))
		uc->uc_stack = self.alternate;
	if (self.moving) {
		set_frame_mask(uc, self.outside);
		uc->uc_stack = self.alternate;
		moved(self.inside);
	} else if (!fault(info) && (self.depth ? defer(info, uc) : move(info, uc, word))) {
		errno = err;
		return;
	}
	errno = err;
	bool known = self.known, disarmed = self.disarmed;
	if (within(&self.alternate, (uintptr_t)__builtin_frame_address(0)))
		self.disarmed = true;
	run(sig, info, context, word);
	self.disarmed = disarmed;
	if (!known && self.known && uc->uc_stack.ss_flags & SS_DISABLE) // the first verb of this thread was one in the handler
		uc->uc_stack = self.alternate;
}

// deliver runs a handler as the kernel does, unless the kernel has to: the action has changed, or the handler wants another stack.
static void deliver(siginfo_t *info, uint64_t outside)
{
	int sig = info->si_signo;
	struct sigaction act;
	ucontext_t uc;
	uintptr_t word = __atomic_load_n(&program[sig], __ATOMIC_SEQ_CST);
	if (next_sigaction()(sig, NULL, &act) || act.sa_sigaction != caught || word & onstack || getcontext(&uc)) {
		resend(info);
		change_mask(SIG_SETMASK, outside);
		return;
	}
	set_frame_mask(&uc, outside);
	change_mask(SIG_SETMASK, outside | to_bits(&act.sa_mask) | BIT(sig));
	run(sig, info, &uc, word);
	change_mask(SIG_SETMASK, to_bits(&uc.uc_sigmask));
}

static __attribute__((noinline)) void release(void)
{
	int err = errno;
	change_mask(SIG_BLOCK, ~(faults | of_libc));
	uint64_t outside = self.outside;
	int n = self.count;
	siginfo_t first = self.deferred[0];
	for (int i = 1; i < n; i++)
		resend(&self.deferred[i]);
	self.count = 0;
	self.held = false;
	if (n)
		deliver(&first, outside);
	else
		change_mask(SIG_SETMASK, outside);
	errno = err;
}

// arm lets handlers disable the alternate stack that Go sets in the first call of a thread, as move does. It is called before that call
// and after it. A stack of the program stays as it is.
static __attribute__((noinline)) void arm(void)
{
	stack_t stack;
	bool enabled = !sigaltstack(NULL, &stack) && !(stack.ss_flags & SS_DISABLE);
	if (self.arming && enabled) {
		stack.ss_flags = (int)(1U << 31); // SS_AUTODISARM. Without it, before Linux 4.7, handlers stay on this stack.
		sigaltstack(&stack, NULL);
		self.alternate = stack;
	}
	self.arming = !self.known && !enabled;
	self.known = true;
}

void ibx_wrap(void) { wrapping = true; }

void ibx_enter(void)
{
	if (self.moving) // the action has changed in the meantime, and the signal was ignored
		moved(self.outside);
	if (!self.known)
		arm();
	uintptr_t here = (uintptr_t)__builtin_frame_address(0);
	jumped(here);
	if (!self.depth && within(&self.alternate, here)) {
		// A handler on the alternate stack calls a verb. A signal in Go would overwrite it there.
		self.outside = change_mask(SIG_BLOCK, ~(faults | of_libc));
		self.held = true;
	}
	self.depth++;
}

void ibx_leave(void)
{
	if (self.arming)
		arm();
	if (--self.depth == 0 && self.held)
		release();
}

// wrap keeps the handler of an action and installs caught in its place. It returns the previous handler.
static uintptr_t wrap(int sig, struct sigaction *act)
{
	uintptr_t word = (uintptr_t)act->sa_sigaction;
	word |= act->sa_flags & SA_ONSTACK ? onstack : 0;
	word |= act->sa_flags & SA_SIGINFO ? siginfo : 0;
	word |= act->sa_flags & (int)SA_RESETHAND ? oneshot : 0;
	word |= act->sa_flags & SA_NODEFER ? nodefer : 0;
	act->sa_sigaction = caught;
	act->sa_flags = (act->sa_flags | SA_ONSTACK | SA_SIGINFO) & ~((int)SA_RESETHAND | SA_NODEFER);
	return __atomic_exchange_n(&program[sig], word, __ATOMIC_SEQ_CST);
}

static void unwrap(struct sigaction *act, uintptr_t word)
{
	act->sa_flags &= ~(SA_ONSTACK | SA_SIGINFO);
	act->sa_flags |= (word & onstack ? SA_ONSTACK : 0) | (word & siginfo ? SA_SIGINFO : 0);
	act->sa_flags |= (word & oneshot ? (int)SA_RESETHAND : 0) | (word & nodefer ? SA_NODEFER : 0);
	act->sa_sigaction = (handler_t)(word & address);
}

int sigaction(int sig, const struct sigaction *act, struct sigaction *old)
{
	if (sig <= 0 || sig >= NSIG)
		return next_sigaction()(sig, act, old);
	uintptr_t before = __atomic_load_n(&program[sig], __ATOMIC_SEQ_CST);
	struct sigaction own;
	if (wrapping && act && act->sa_handler != SIG_DFL && act->sa_handler != SIG_IGN && act->sa_sigaction != caught) {
		own = *act;
		before = wrap(sig, &own);
		act = &own;
	}
	int err = next_sigaction()(sig, act, old);
	if (!err && old && old->sa_sigaction == caught)
		unwrap(old, before);
	return err;
}

static sighandler_t set(int sig, sighandler_t handler, int flags)
{
	struct sigaction act = {.sa_handler = handler, .sa_flags = flags}, old;
	if (handler == SIG_ERR) {
		errno = EINVAL;
		return SIG_ERR;
	}
	return sigaction(sig, &act, &old) ? SIG_ERR : old.sa_handler;
}

sighandler_t signal(int sig, sighandler_t handler) { return set(sig, handler, SA_RESTART); }
sighandler_t sysv_signal(int sig, sighandler_t handler) { return set(sig, handler, (int)SA_RESETHAND | SA_NODEFER); }

sighandler_t sigset(int sig, sighandler_t handler)
{
	struct sigaction old;
	if (sig <= 0 || sig >= NSIG) {
		errno = EINVAL;
		return SIG_ERR;
	}
	bool hold = handler == SIG_HOLD;
	if (hold ? sigaction(sig, NULL, &old) : (old.sa_handler = set(sig, handler, 0)) == SIG_ERR)
		return SIG_ERR;
	return change_mask(hold ? SIG_BLOCK : SIG_UNBLOCK, BIT(sig)) & BIT(sig) ? SIG_HOLD : old.sa_handler;
}

// Other names that libc has for these functions.
int __sigaction(int sig, const struct sigaction *act, struct sigaction *old) __THROW __attribute__((alias("sigaction")));
sighandler_t bsd_signal(int sig, sighandler_t handler) __THROW __attribute__((alias("signal")));
sighandler_t ssignal(int sig, sighandler_t handler) __THROW __attribute__((alias("signal")));
sighandler_t __sysv_signal(int sig, sighandler_t handler) __THROW __attribute__((alias("sysv_signal")));
