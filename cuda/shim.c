//go:build linux && cgo && !386 && !arm && !mips && !mipsle

// The C side finds libcuda at run time and calls it. No Go memory is kept after a call returns,
// except the host memory of copies and of pinned memory, which Go keeps alive.

#include "shim.h"

#include <dlfcn.h>
#include <string.h>

#define TYPE(name, symbol, needed, args) typedef int(*name##_t) args;
SYMBOLS(TYPE)
#undef TYPE

// CALL calls a function of the library.
#define CALL(fn, ...)                                                                                                          \
	(lib->fn ? (struct outcome){((fn##_t)lib->fn)(__VA_ARGS__), #fn} : (struct outcome){ABSENT, #fn})

// WITHIN is CALL with the context current. A failure to restore the thread's former context does not
// undo the call, so it is not reported.
#define WITHIN(fn, ...)                                                                                                        \
	({                                                                                                                     \
		struct outcome done_ = CALL(cuCtxPushCurrent, (void *)context);                                                \
		if (!done_.code) {                                                                                             \
			void *popped_;                                                                                         \
			done_ = CALL(fn, __VA_ARGS__);                                                                         \
			(void)CALL(cuCtxPopCurrent, &popped_);                                                                 \
		}                                                                                                              \
		done_;                                                                                                         \
	})

// TRY returns the outcome of a call that failed.
#define TRY(fn, ...)                                                                                                           \
	do {                                                                                                                   \
		struct outcome o_ = CALL(fn, __VA_ARGS__);                                                                     \
		if (o_.code)                                                                                                   \
			return o_;                                                                                             \
	} while (0)

int gpu_load(const char *path, struct library *lib, char *text, size_t size)
{
	const char *absent = NULL;
	// The library has its own threads and handlers, so it is never unloaded.
	void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);

	if (!handle) {
		const char *why = dlerror();

		strncpy(text, why ? why : "", size - 1);
		return GPU_NO_LIBRARY;
	}
#define FIND(name, symbol, needed, args)                                                                                       \
	lib->name = (uintptr_t)dlsym(handle, symbol);                                                                          \
	if (!lib->name && needed && !absent)                                                                                   \
		absent = symbol;
	SYMBOLS(FIND)
#undef FIND
	dlclose(handle);
	if (!absent)
		return GPU_LOADED;
	strncpy(text, absent, size - 1);
	return GPU_OLD_LIBRARY;
}

struct outcome gpu_start(struct library *lib, int *version, int *count)
{
	TRY(cuInit, 0);
	TRY(cuDriverGetVersion, version);
	return CALL(cuDeviceGetCount, count);
}

void gpu_explain(struct library *lib, int code, const char **name, const char **text)
{
	if (CALL(cuGetErrorName, code, name).code)
		*name = NULL;
	if (CALL(cuGetErrorString, code, text).code)
		*text = NULL;
}

struct outcome gpu_describe(struct library *lib, int ordinal, struct gpu_device *out)
{
	size_t bytes = 0;
	int device;

	memset(out, 0, sizeof(*out));
	TRY(cuDeviceGet, &device, ordinal);
	TRY(cuDeviceGetName, out->name, sizeof(out->name) - 1, device);
	TRY(cuDeviceGetPCIBusId, out->pci, sizeof(out->pci) - 1, device);
	TRY(cuDeviceTotalMem, &bytes, device);
	out->bytes = bytes;
	TRY(cuDeviceGetAttribute, &out->major, ATTR_COMPUTE_MAJOR, device);
	TRY(cuDeviceGetAttribute, &out->minor, ATTR_COMPUTE_MINOR, device);
	// Drivers that do not know these attributes support neither.
	if (CALL(cuDeviceGetAttribute, &out->rdma, ATTR_GPU_DIRECT_RDMA, device).code)
		out->rdma = 0;
	if (!lib->cuMemGetHandleForAddressRange || CALL(cuDeviceGetAttribute, &out->dmabuf, ATTR_DMA_BUF, device).code)
		out->dmabuf = 0;
	return (struct outcome){0};
}

struct outcome gpu_retain(struct library *lib, int ordinal, uintptr_t *context, int *device)
{
	TRY(cuDeviceGet, device, ordinal);
	return CALL(cuDevicePrimaryCtxRetain, (void **)context, *device);
}

struct outcome gpu_release(struct library *lib, int device)
{
	return CALL(cuDevicePrimaryCtxRelease, device);
}

struct outcome gpu_alloc(struct library *lib, uintptr_t context, size_t bytes, uint64_t *address)
{
	return WITHIN(cuMemAlloc, address, bytes);
}

struct outcome gpu_free(struct library *lib, uintptr_t context, uint64_t address)
{
	return WITHIN(cuMemFree, address);
}

struct outcome gpu_range(struct library *lib, uintptr_t context, uint64_t address, uint64_t *base, size_t *bytes)
{
	return WITHIN(cuMemGetAddressRange, base, bytes, address);
}

struct outcome gpu_attribute(struct library *lib, uintptr_t context, int attribute, uint64_t address, int32_t *value)
{
	return WITHIN(cuPointerGetAttribute, value, attribute, address);
}

struct outcome gpu_pin(struct library *lib, uintptr_t context, uintptr_t host, size_t bytes)
{
	return WITHIN(cuMemHostRegister, (void *)host, bytes, HOST_REGISTER_PORTABLE | HOST_REGISTER_DEVICEMAP);
}

struct outcome gpu_unpin(struct library *lib, uintptr_t context, uintptr_t host)
{
	return WITHIN(cuMemHostUnregister, (void *)host);
}

struct outcome gpu_stream(struct library *lib, uintptr_t context, uintptr_t *stream)
{
	return WITHIN(cuStreamCreate, (void **)stream, STREAM_NON_BLOCKING);
}

struct outcome gpu_copy(struct library *lib, uintptr_t context, int direction, uint64_t to, uint64_t from, size_t bytes,
			uintptr_t stream)
{
	switch (direction) {
	case TO_GPU:
		return WITHIN(cuMemcpyHtoDAsync, to, (const void *)(uintptr_t)from, bytes, (void *)stream);
	case FROM_GPU:
		return WITHIN(cuMemcpyDtoHAsync, (void *)(uintptr_t)to, from, bytes, (void *)stream);
	}
	return WITHIN(cuMemcpyDtoDAsync, to, from, bytes, (void *)stream);
}

struct outcome gpu_kernel(struct library *lib, uintptr_t context, int device, const char *text, const char *name,
			  uintptr_t *module, uintptr_t *function)
{
	struct outcome o;
	int direct = 0;

	TRY(cuDeviceGetAttribute, &direct, ATTR_USE_HOST_POINTER, device);
	if (direct != 1 || !lib->cuLaunchKernel || !lib->cuModuleGetFunction || !lib->cuModuleUnload)
		return (struct outcome){ABSENT, "cuLaunchKernel"};
	o = WITHIN(cuModuleLoadData, (void **)module, text);
	if (o.code)
		return o;
	o = WITHIN(cuModuleGetFunction, (void **)function, (void *)*module, name);
	if (o.code)
		(void)WITHIN(cuModuleUnload, (void *)*module);
	return o;
}

struct outcome gpu_launch(struct library *lib, uintptr_t context, uintptr_t function, uint64_t list, unsigned int groups,
			  uintptr_t stream)
{
	void *args[] = {&list};

	return WITHIN(cuLaunchKernel, (void *)function, groups, 1, 1, GROUP_THREADS, 1, 1, 0, (void *)stream, args, NULL);
}

struct outcome gpu_unload(struct library *lib, uintptr_t context, uintptr_t module)
{
	return WITHIN(cuModuleUnload, (void *)module);
}

struct outcome gpu_synchronize(struct library *lib, uintptr_t context, uintptr_t stream)
{
	return WITHIN(cuStreamSynchronize, (void *)stream);
}

struct outcome gpu_destroy(struct library *lib, uintptr_t context, uintptr_t stream)
{
	return WITHIN(cuStreamDestroy, (void *)stream);
}

struct outcome gpu_dmabuf(struct library *lib, uintptr_t context, uint64_t address, size_t bytes, int *fd)
{
	return WITHIN(cuMemGetHandleForAddressRange, fd, address, bytes, RANGE_HANDLE_DMA_BUF_FD, 0);
}

struct outcome gpu_ipc_get(struct library *lib, uintptr_t context, uint64_t address, struct ipc_handle *handle)
{
	return WITHIN(cuIpcGetMemHandle, handle, address);
}

struct outcome gpu_ipc_open(struct library *lib, uintptr_t context, struct ipc_handle *handle, uint64_t *address)
{
	return WITHIN(cuIpcOpenMemHandle, address, *handle, IPC_LAZY_ENABLE_PEER_ACCESS);
}

struct outcome gpu_ipc_close(struct library *lib, uintptr_t context, uint64_t address)
{
	return WITHIN(cuIpcCloseMemHandle, address);
}
