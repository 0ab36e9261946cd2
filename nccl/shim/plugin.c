// Shards, connections and requests. Requests complete in memory that the core writes, so testing one needs no call into Go.
#define _GNU_SOURCE
#include "plugin.h"
#include "loader.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

// pollInterval is the least time between two polls of a shard, in nanoseconds.
static const int64_t poll_interval = 300;

// shard is a communicator's share of the core. NCCL knows it by its number: a context may be used after finalize, by a communicator that
// shares its parent's resources. It then serves as long as the core keeps it.
struct shard {
	uint32_t number;
	// refs counts connections, listeners and the context. shards_lock guards it.
	int refs;
	bool finalized;
	int64_t polled;
	struct shard *next;
};

struct listener {
	uint32_t number;
	struct shard *shard;
};

struct ibx_comm {
	struct ibx_words words;
	struct shard *shard;
	uint32_t number;
	// sent counts the grants used by isend.
	uint32_t sent;
	// next is where the search for a free request starts.
	uint32_t next;
};

static pthread_mutex_t shards_lock = PTHREAD_MUTEX_INITIALIZER;
static struct shard *shards;
// common is the shard of table versions without contexts. It also serves contexts that are gone.
static struct shard *common;

// purge frees the shards that the core has freed. shards_lock is held.
static void purge(void)
{
	for (struct shard **at = &shards; *at;) {
		struct shard *s = *at;
		if (s->refs == 0 && core.poll(s->number) == IBX_GONE) {
			*at = s->next;
			free(s);
		} else {
			at = &s->next;
		}
	}
}

static struct shard *open_shard(void)
{
	purge();
	struct shard *s = calloc(1, sizeof(*s));
	if (!s)
		return NULL;
	if (core.open(&s->number)) {
		free(s);
		return NULL;
	}
	s->refs = 1;
	s->next = shards;
	shards = s;
	return s;
}

// hold returns the shard of a context with another reference, NULL if there is none.
static struct shard *hold(void *ctx)
{
	pthread_mutex_lock(&shards_lock);
	struct shard *s = NULL;
	if (ctx)
		for (s = shards; s && s->number != (uintptr_t)ctx; s = s->next)
			;
	if (!s && !common)
		common = open_shard();
	if (!s)
		s = common;
	if (s)
		s->refs++;
	pthread_mutex_unlock(&shards_lock);
	return s;
}

static void release(struct shard *s)
{
	pthread_mutex_lock(&shards_lock);
	s->refs--;
	pthread_mutex_unlock(&shards_lock);
}

// move replaces a shard that the core has freed with the common one.
static int move(struct shard **s)
{
	release(*s);
	*s = hold(NULL);
	return *s ? OK : SYSTEM_ERROR;
}

int plugin_init(logger log, int version, void **ctx)
{
	if (ibx_forked)
		return SYSTEM_ERROR;
	int err = load(log);
	if (err)
		return err;
	struct ibx_properties p;
	if (core.describe(&p))
		return SYSTEM_ERROR;
	if (ctx) {
		pthread_mutex_lock(&shards_lock);
		struct shard *s = open_shard();
		*ctx = s ? (void *)(uintptr_t)s->number : NULL;
		pthread_mutex_unlock(&shards_lock);
		if (!s)
			return SYSTEM_ERROR;
	}
	say(LOG_INFO, "NET/ibverbx : in use with %d rail%s: %s (table v%d)", p.rails, p.rails == 1 ? "" : "s", p.description, version);
	return OK;
}

int plugin_finalize(void *ctx)
{
	if (!ctx || ibx_forked)
		return OK;
	pthread_mutex_lock(&shards_lock);
	struct shard *s = shards;
	while (s && s->number != (uintptr_t)ctx)
		s = s->next;
	bool first = s && s != common && !s->finalized;
	if (first)
		s->finalized = true;
	pthread_mutex_unlock(&shards_lock);
	if (first) {
		core.close_shard(s->number);
		release(s);
	}
	return OK;
}

int plugin_devices(int *n)
{
	if (ibx_forked || !core.seam)
		return SYSTEM_ERROR;
	*n = 1;
	return OK;
}

int plugin_listen(void *ctx, int dev, void *handle, void **out)
{
	*out = NULL;
	if (ibx_forked)
		return SYSTEM_ERROR;
	if (dev != 0)
		return INVALID_ARGUMENT;
	struct listener *l = calloc(1, sizeof(*l));
	if (!l || !(l->shard = hold(ctx))) {
		free(l);
		return SYSTEM_ERROR;
	}
	int err = core.listen(l->shard->number, handle, &l->number);
	if (err == IBX_GONE && (err = move(&l->shard)) == OK)
		err = core.listen(l->shard->number, handle, &l->number);
	if (err) {
		if (l->shard)
			release(l->shard);
		free(l);
		return err;
	}
	*out = l;
	return OK;
}

int plugin_close_listen(void *listener)
{
	struct listener *l = listener;
	if (!l || ibx_forked)
		return OK;
	core.close_listen(l->number);
	release(l->shard);
	free(l);
	return OK;
}

// adopt makes a connection of the core a comm, and takes over the caller's reference to the shard.
static int adopt(struct shard *s, uint32_t number, void **out)
{
	struct ibx_comm *c = calloc(1, sizeof(*c));
	int err = c ? core.adopt(number, &c->words) : SYSTEM_ERROR;
	if (err) {
		core.close(number);
		release(s);
		free(c);
		return err;
	}
	c->shard = s;
	c->number = number;
	for (int i = 0; i < IBX_DEPTH; i++)
		c->words.requests[i].owner = c;
	*out = c;
	return OK;
}

int plugin_connect(void *ctx, int dev, void *handle, void **out)
{
	*out = NULL;
	if (ibx_forked)
		return SYSTEM_ERROR;
	if (dev != 0)
		return INVALID_ARGUMENT;
	struct shard *s = hold(ctx);
	if (!s)
		return SYSTEM_ERROR;
	uint32_t number = 0;
	int err = core.connect(s->number, handle, &number);
	if (err == IBX_GONE && (err = move(&s)) == OK)
		err = core.connect(s->number, handle, &number);
	if (!err)
		return adopt(s, number, out);
	if (s)
		release(s);
	return err == IBX_AGAIN ? OK : err;
}

int plugin_accept(void *listener, void **out)
{
	struct listener *l = listener;
	*out = NULL;
	if (ibx_forked)
		return SYSTEM_ERROR;
	uint32_t number = 0;
	int err = core.accept(l->number, &number);
	if (err)
		return err == IBX_AGAIN ? OK : err;
	pthread_mutex_lock(&shards_lock);
	l->shard->refs++;
	pthread_mutex_unlock(&shards_lock);
	return adopt(l->shard, number, out);
}

int plugin_reg(void *comm, void *data, size_t size, int type, void **out)
{
	struct ibx_comm *c = comm;
	*out = NULL;
	if (ibx_forked)
		return SYSTEM_ERROR;
	if (type != 1) // memory of the host
		return INVALID_ARGUMENT;
	uint32_t number = 0;
	int err = core.reg(c->number, data, size, &number);
	*out = (void *)(uintptr_t)number;
	return err;
}

int plugin_dereg(void *comm, void *mhandle)
{
	(void)comm;
	if (!mhandle || ibx_forked)
		return OK;
	return core.dereg((uint32_t)(uintptr_t)mhandle);
}

static struct ibx_request *take(struct ibx_comm *c)
{
	for (int i = 0; i < IBX_DEPTH; i++) {
		struct ibx_request *r = &c->words.requests[c->next++ % IBX_DEPTH];
		uint32_t free = IBX_FREE;
		if (__atomic_compare_exchange_n(&r->state, &free, IBX_BUSY, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
			return r;
	}
	return NULL;
}

static void give(struct ibx_request *r) { __atomic_store_n(&r->state, IBX_FREE, __ATOMIC_RELEASE); }

// poll_shard makes progress on a shard unless that happened just before.
static void poll_shard(struct shard *s)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	int64_t now = t.tv_sec * 1000000000LL + t.tv_nsec;
	if (now - __atomic_load_n(&s->polled, __ATOMIC_RELAXED) < poll_interval)
		return;
	__atomic_store_n(&s->polled, now, __ATOMIC_RELAXED);
	core.poll(s->number);
}

// poll makes progress on a connection unless a worker does.
static void poll(struct ibx_comm *c)
{
	if (!__atomic_load_n(&ibx_runs[c->words.worker], __ATOMIC_ACQUIRE))
		poll_shard(c->shard);
}

// posted ends isend and irecv.
static int posted(struct ibx_request *r, int err, void **request)
{
	if (!err) {
		*request = r;
		return OK;
	}
	give(r);
	return err == IBX_AGAIN ? OK : err;
}

int plugin_isend(void *comm, void *data, size_t size, void *mhandle, void **request)
{
	struct ibx_comm *c = comm;
	*request = NULL;
	if (ibx_forked)
		return SYSTEM_ERROR;
	if (__atomic_load_n(&c->words.granted, __ATOMIC_ACQUIRE) == c->sent) {
		poll(c);
		if (__atomic_load_n(&c->words.granted, __ATOMIC_ACQUIRE) == c->sent)
			return __atomic_load_n(&c->words.result, __ATOMIC_ACQUIRE);
	}
	struct ibx_request *r = take(c);
	if (!r)
		return OK;
	int err = core.isend(c->number, data, size, (uint32_t)(uintptr_t)mhandle, (uint32_t)(r - c->words.requests));
	if (!err)
		c->sent++;
	return posted(r, err, request);
}

int plugin_irecv(void *comm, int n, void *data, size_t size, void *mhandle, void **request)
{
	struct ibx_comm *c = comm;
	*request = NULL; // it may hold a hint
	if (ibx_forked)
		return SYSTEM_ERROR;
	if (n != 1)
		return INTERNAL_ERROR;
	struct ibx_request *r = take(c);
	if (!r)
		return __atomic_load_n(&c->words.result, __ATOMIC_ACQUIRE);
	return posted(r, core.irecv(c->number, data, size, (uint32_t)(uintptr_t)mhandle, (uint32_t)(r - c->words.requests)), request);
}

int plugin_flush(void **request)
{
	*request = NULL; // memory of the host needs none
	return OK;
}

int plugin_test(void *request, int *done, int *sizes)
{
	struct ibx_request *r = request;
	*done = 0;
	if (ibx_forked)
		return SYSTEM_ERROR;
	if (__atomic_load_n(&r->state, __ATOMIC_ACQUIRE) != IBX_DONE) {
		poll(r->owner);
		if (__atomic_load_n(&r->state, __ATOMIC_ACQUIRE) != IBX_DONE)
			return OK;
	}
	int result = r->result;
	if (!result) {
		*done = 1;
		if (sizes)
			*sizes = (int)r->size;
	}
	give(r);
	return result;
}

int plugin_close(void *comm)
{
	struct ibx_comm *c = comm;
	if (!c || ibx_forked)
		return OK;
	core.close(c->number);
	release(c->shard);
	free(c);
	return OK;
}

// ibverbx_nccl_parts sets the number of parts before the first init, for tests.
__attribute__((visibility("default"))) void ibverbx_nccl_parts(int n) { ibx_parts = n; }

// ibverbx_nccl_rail takes the port of software NIC rail down (up is 0) or up again, for tests.
__attribute__((visibility("default"))) int ibverbx_nccl_rail(int rail, int up)
{
	return ibx_forked || !core.seam ? SYSTEM_ERROR : core.rail(rail, up);
}
