// What the files of this library share.
#ifndef IBX_PRELOAD_H
#define IBX_PRELOAD_H

#include <dlfcn.h>

// first_version is that of the oldest symbols of glibc. New programs are not linked with some of them, and dlsym does not find those.
#ifdef __x86_64__
#define first_version "GLIBC_2.2.5"
#else
#define first_version "GLIBC_2.17"
#endif

// next returns the function of libc behind one of this library.
#define next(type, name) \
	({ \
		static __typeof__(type) *found; \
		if (!found) \
			found = (__typeof__(found))dlsym(RTLD_NEXT, name); \
		if (!found) \
			found = (__typeof__(found))dlvsym(RTLD_NEXT, name, first_version); \
		found; \
	})

// ibx_cm_path is the file through which programs use the connection manager.
#define ibx_cm_path "/dev/infiniband/rdma_cm"

// cm_opened opens it. It returns a descriptor, or -1 and errno.
__attribute__((visibility("hidden"))) int cm_opened(int flags);

#endif
