// Loading a Go core into a process that knows nothing of Go.
#ifndef IBX_LOADER_H
#define IBX_LOADER_H

#include <stdbool.h>

// ibx_loader describes a Go core. Its functions may be NULL except start.
struct ibx_loader {
	// core is the file name of the core, in the directory of the library that contains this code.
	const char *core;
	// what starts the message if the core cannot be loaded.
	const char *what;
	// start resolves the functions of the core and starts it. It returns 0 or an errno, after a complaint.
	int (*start)(void *lib, const char *path);
	// wrap runs once the core has started, before the signal actions are restored.
	void (*wrap)(void);
	// child runs in a forked child, which lacks the threads of the Go runtime.
	void (*child)(void);
	// complain reports an error.
	void (*complain)(const char *what, const char *why);
};

// ibx_load_core loads and starts the core once. Later calls return 0, or try again after an error. It returns an errno, in a forked
// child ENODEV. The signal mask and the signal actions of the process stay as they are, except that handlers get SA_ONSTACK
// unless wrap is set.
int ibx_load_core(const struct ibx_loader *l);

// ibx_forked is set in a child of a process that has loaded the core or tried to.
extern bool ibx_forked;

#endif
