// What Go calls, and the few declarations of the CUDA driver API that it needs. There is no CUDA
// header. The names are those of cuda.h without their version suffix.
//
// A program may link this and the C side of rdmacore, so the functions begin with gpu_ here.

#ifndef IBVERBX_CUDA_SHIM_H
#define IBVERBX_CUDA_SHIM_H

#include <stddef.h>
#include <stdint.h>

// Values of the driver API.
enum {
	ATTR_COMPUTE_MAJOR = 75, // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
	ATTR_COMPUTE_MINOR = 76,
	ATTR_USE_HOST_POINTER = 91, // CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM
	ATTR_GPU_DIRECT_RDMA = 116,
	ATTR_DMA_BUF = 124,

	POINTER_MEMORY_TYPE = 2, // CU_POINTER_ATTRIBUTE_MEMORY_TYPE
	POINTER_IS_MANAGED = 8,
	POINTER_DEVICE_ORDINAL = 9,

	STREAM_NON_BLOCKING = 1,
	HOST_REGISTER_PORTABLE = 1,
	HOST_REGISTER_DEVICEMAP = 2,
	RANGE_HANDLE_DMA_BUF_FD = 1,
	IPC_LAZY_ENABLE_PEER_ACCESS = 1,
};

// ipc_handle is CUipcMemHandle. It is passed by value.
struct ipc_handle {
	char bytes[64];
};

// SYMBOLS(X): name, symbol of the library, whether it must exist, and parameters. All of them
// return a CUresult, which is an int. A CUdevice is an int, a CUdeviceptr has 64 bits, and contexts
// and streams are pointers.
#define SYMBOLS(X)                                                                                                             \
	X(cuInit, "cuInit", 1, (unsigned int flags))                                                                           \
	X(cuDriverGetVersion, "cuDriverGetVersion", 1, (int *version))                                                         \
	X(cuGetErrorName, "cuGetErrorName", 1, (int code, const char **text))                                                  \
	X(cuGetErrorString, "cuGetErrorString", 1, (int code, const char **text))                                              \
	X(cuDeviceGetCount, "cuDeviceGetCount", 1, (int *count))                                                               \
	X(cuDeviceGet, "cuDeviceGet", 1, (int *device, int ordinal))                                                           \
	X(cuDeviceGetName, "cuDeviceGetName", 1, (char *name, int length, int device))                                         \
	X(cuDeviceTotalMem, "cuDeviceTotalMem_v2", 1, (size_t *bytes, int device))                                             \
	X(cuDeviceGetAttribute, "cuDeviceGetAttribute", 1, (int *value, int attribute, int device))                            \
	X(cuDeviceGetPCIBusId, "cuDeviceGetPCIBusId", 1, (char *id, int length, int device))                                   \
	X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", 1, (void **context, int device))                               \
	X(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", 1, (int device))                                          \
	X(cuCtxPushCurrent, "cuCtxPushCurrent_v2", 1, (void *context))                                                         \
	X(cuCtxPopCurrent, "cuCtxPopCurrent_v2", 1, (void **context))                                                          \
	X(cuMemAlloc, "cuMemAlloc_v2", 1, (uint64_t *address, size_t bytes))                                                   \
	X(cuMemFree, "cuMemFree_v2", 1, (uint64_t address))                                                                    \
	X(cuMemGetAddressRange, "cuMemGetAddressRange_v2", 1, (uint64_t *base, size_t *bytes, uint64_t address))               \
	X(cuPointerGetAttribute, "cuPointerGetAttribute", 1, (void *value, int attribute, uint64_t address))                   \
	X(cuMemHostRegister, "cuMemHostRegister_v2", 1, (void *host, size_t bytes, unsigned int flags))                        \
	X(cuMemHostUnregister, "cuMemHostUnregister", 1, (void *host))                                                         \
	X(cuMemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2", 1, (uint64_t to, const void *from, size_t bytes, void *stream))           \
	X(cuMemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2", 1, (void *to, uint64_t from, size_t bytes, void *stream))                 \
	X(cuMemcpyDtoDAsync, "cuMemcpyDtoDAsync_v2", 1, (uint64_t to, uint64_t from, size_t bytes, void *stream))              \
	X(cuStreamCreate, "cuStreamCreate", 1, (void **stream, unsigned int flags))                                            \
	X(cuStreamSynchronize, "cuStreamSynchronize", 1, (void *stream))                                                       \
	X(cuStreamDestroy, "cuStreamDestroy_v2", 1, (void *stream))                                                            \
	X(cuModuleLoadData, "cuModuleLoadData", 0, (void **module, const void *text))                                          \
	X(cuModuleGetFunction, "cuModuleGetFunction", 0, (void **function, void *module, const char *name))                    \
	X(cuModuleUnload, "cuModuleUnload", 0, (void *module))                                                                 \
	X(cuLaunchKernel, "cuLaunchKernel", 0,                                                                                 \
	  (void *function, unsigned int groups, unsigned int y, unsigned int z, unsigned int threads, unsigned int ty,         \
	   unsigned int tz, unsigned int shared, void *stream, void **args, void **extra))                                     \
	X(cuMemGetHandleForAddressRange, "cuMemGetHandleForAddressRange", 0,                                                   \
	  (void *handle, uint64_t address, size_t bytes, int type, unsigned long long flags))                                  \
	X(cuIpcGetMemHandle, "cuIpcGetMemHandle", 0, (struct ipc_handle * handle, uint64_t address))                           \
	X(cuIpcOpenMemHandle, "cuIpcOpenMemHandle_v2", 0, (uint64_t * address, struct ipc_handle handle, unsigned int flags))  \
	X(cuIpcCloseMemHandle, "cuIpcCloseMemHandle", 0, (uint64_t address))

// library has the addresses of the functions. They are numbers, so Go can own the structure and cgo
// need not look for Go pointers in it.
struct library {
#define FIELD(name, symbol, needed, args) uintptr_t name;
	SYMBOLS(FIELD)
#undef FIELD
};

// outcome is the result of a call and the name of the function. ABSENT means that the library has no
// such function.
struct outcome {
	int32_t code;
	const char *call;
};

enum { ABSENT = -1, GROUP_THREADS = 512 };

enum { GPU_LOADED, GPU_NO_LIBRARY, GPU_OLD_LIBRARY };

struct gpu_device {
	char name[256];
	char pci[32];
	uint64_t bytes;
	int32_t major, minor, dmabuf, rdma;
};

// gpu_load fills lib. text gets the message of the dynamic linker, or the missing symbol.
int gpu_load(const char *path, struct library *lib, char *text, size_t size);
struct outcome gpu_start(struct library *lib, int *version, int *count);
void gpu_explain(struct library *lib, int code, const char **name, const char **text);
struct outcome gpu_describe(struct library *lib, int ordinal, struct gpu_device *out);

struct outcome gpu_retain(struct library *lib, int ordinal, uintptr_t *context, int *device);
struct outcome gpu_release(struct library *lib, int device);

// All others make the context current for the time of the call, on whatever thread Go runs it, and
// then restore what was current there before.
struct outcome gpu_alloc(struct library *lib, uintptr_t context, size_t bytes, uint64_t *address);
struct outcome gpu_free(struct library *lib, uintptr_t context, uint64_t address);
struct outcome gpu_range(struct library *lib, uintptr_t context, uint64_t address, uint64_t *base, size_t *bytes);
struct outcome gpu_attribute(struct library *lib, uintptr_t context, int attribute, uint64_t address, int32_t *value);
struct outcome gpu_pin(struct library *lib, uintptr_t context, uintptr_t host, size_t bytes);
struct outcome gpu_unpin(struct library *lib, uintptr_t context, uintptr_t host);
struct outcome gpu_stream(struct library *lib, uintptr_t context, uintptr_t *stream);

// gpu_copy queues a copy. Its direction says which addresses are those of a GPU, and the driver refuses one that is not. cuMemcpyAsync
// would take it for host memory and access it.
enum { TO_GPU, FROM_GPU, WITHIN_GPU };
struct outcome gpu_copy(struct library *lib, uintptr_t context, int direction, uint64_t to, uint64_t from, size_t bytes,
			uintptr_t stream);
// gpu_kernel loads a kernel. It fails if the GPU cannot use the addresses of pinned host memory.
struct outcome gpu_kernel(struct library *lib, uintptr_t context, int device, const char *text, const char *name,
			  uintptr_t *module, uintptr_t *function);
struct outcome gpu_launch(struct library *lib, uintptr_t context, uintptr_t function, uint64_t list, unsigned int groups,
			  uintptr_t stream);
struct outcome gpu_unload(struct library *lib, uintptr_t context, uintptr_t module);
struct outcome gpu_synchronize(struct library *lib, uintptr_t context, uintptr_t stream);
struct outcome gpu_destroy(struct library *lib, uintptr_t context, uintptr_t stream);
struct outcome gpu_dmabuf(struct library *lib, uintptr_t context, uint64_t address, size_t bytes, int *fd);
struct outcome gpu_ipc_get(struct library *lib, uintptr_t context, uint64_t address, struct ipc_handle *handle);
struct outcome gpu_ipc_open(struct library *lib, uintptr_t context, struct ipc_handle *handle, uint64_t *address);
struct outcome gpu_ipc_close(struct library *lib, uintptr_t context, uint64_t address);

#endif
