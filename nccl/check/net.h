// One interface to the tables of all versions, by the offsets of NCCL's headers, and two processes that use it.
#ifndef IBX_NET_H
#define IBX_NET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { REMOTE_ERROR = 6, HANDLE = 128, IN_FLIGHT = 64 };

// The plugin under test. net_open fills it in.
extern const char *net_path;
extern int net_version;
extern void *net_ctx;
// net_verbose shows the plugin's information, not only its warnings.
extern bool net_verbose;

struct device {
	const char *name, *pci_path;
	int ptr_support, speed, max_comms, max_recvs;
};

void net_load(void);
void net_unload(void);
int net_init(void **ctx);
int net_finalize(void *ctx);
int net_devices(int *n);
void net_open(void); // load and init, and check the device
void net_describe(struct device *d);
int net_listen(void *handle, void **listener);
int net_connect(void *handle, void **comm);
int net_accept(void *listener, void **comm);
int net_reg(void *comm, void *data, size_t size, void **mhandle);
int net_dereg(void *comm, void *mhandle);
int net_isend(void *comm, void *data, size_t size, void *mhandle, void **request);
int net_irecv(void *comm, void *data, size_t size, void *mhandle, void **request);
int net_test(void *request, int *done, int *size);
int net_close_send(void *comm);
int net_close_recv(void *comm);
int net_close_listen(void *listener);
int net_rail(int rail, int up);

// fail prints the place and a text, and exits.
void fail(const char *file, int line, const char *format, ...) __attribute__((noreturn, format(printf, 3, 4)));
#define CHECK(cond, ...) \
	do { \
		if (!(cond)) \
			fail(__FILE__, __LINE__, __VA_ARGS__); \
	} while (0)

double now(void); // in seconds
void pause_ms(int ms);
void fill(unsigned char *b, size_t n, uint64_t seed);
bool same(const unsigned char *b, size_t n, uint64_t seed);
void *map(size_t size);

// rank is this process, 0 or 1; peer_pid the other one. put and take exchange bytes with it; meet waits for it.
extern int rank;
extern int peer_pid;
void put(const void *b, size_t n);
void take(void *b, size_t n);
void meet(void);

// A connection: rank from sends. end is this rank's side.
void *connection(int from);
// transfer moves n bytes from rank `from`: data is this rank's buffer, in mhandle. room is the size of the receive. It returns the size.
int transfer(int from, void *comm, unsigned char *data, size_t n, size_t room, void *mhandle);
// await waits for a request, which must succeed, and returns its size.
int await(void *request);
// await_error waits for a request to fail, at most seconds, and returns the result.
int await_error(void *request, double seconds);
// post repeats isend or irecv until it returns a request.
void *post(bool send, void *comm, void *data, size_t n, void *mhandle);

#endif
