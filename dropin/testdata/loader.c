// Loads libibverbs as NCCL does, without being linked with it: dlopen of libibverbs.so, then of libibverbs.so.1, and dlvsym of each
// function with its version. It prints the names of the devices. The argument is the name that NCCL tries first.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <string.h>

static const struct {
	const char *name, *version;
} functions[] = {
	{"ibv_get_device_list", "IBVERBS_1.1"}, {"ibv_free_device_list", "IBVERBS_1.1"}, {"ibv_get_device_name", "IBVERBS_1.1"},
	{"ibv_open_device", "IBVERBS_1.1"}, {"ibv_close_device", "IBVERBS_1.1"}, {"ibv_get_async_event", "IBVERBS_1.1"},
	{"ibv_ack_async_event", "IBVERBS_1.1"}, {"ibv_query_device", "IBVERBS_1.1"}, {"ibv_query_port", "IBVERBS_1.1"},
	{"ibv_query_gid", "IBVERBS_1.1"}, {"ibv_query_qp", "IBVERBS_1.1"}, {"ibv_alloc_pd", "IBVERBS_1.1"},
	{"ibv_dealloc_pd", "IBVERBS_1.1"}, {"ibv_reg_mr", "IBVERBS_1.1"}, {"ibv_reg_mr_iova2", "IBVERBS_1.8"},
	{"ibv_reg_dmabuf_mr", "IBVERBS_1.12"}, {"ibv_dereg_mr", "IBVERBS_1.1"}, {"ibv_create_cq", "IBVERBS_1.1"},
	{"ibv_destroy_cq", "IBVERBS_1.1"}, {"ibv_create_qp", "IBVERBS_1.1"}, {"ibv_modify_qp", "IBVERBS_1.1"},
	{"ibv_destroy_qp", "IBVERBS_1.1"}, {"ibv_fork_init", "IBVERBS_1.1"}, {"ibv_event_type_str", "IBVERBS_1.1"},
	{"ibv_query_ece", "IBVERBS_1.10"}, {"ibv_set_ece", "IBVERBS_1.10"},
};

int main(int argc, char **argv)
{
	void *lib = dlopen(argc > 1 ? argv[1] : "libibverbs.so", RTLD_NOW);
	if (!lib)
		lib = dlopen("libibverbs.so.1", RTLD_NOW);
	if (!lib) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	for (size_t i = 0; i < sizeof(functions) / sizeof(*functions); i++)
		if (!dlvsym(lib, functions[i].name, functions[i].version)) {
			fprintf(stderr, "%s of %s is missing\n", functions[i].name, functions[i].version);
			return 1;
		}
	struct ibv_device **(*list)(int *) = dlvsym(lib, "ibv_get_device_list", "IBVERBS_1.1");
	const char *(*name)(struct ibv_device *) = dlvsym(lib, "ibv_get_device_name", "IBVERBS_1.1");
	struct ibv_context *(*opened)(struct ibv_device *) = dlvsym(lib, "ibv_open_device", "IBVERBS_1.1");
	int (*closed)(struct ibv_context *) = dlvsym(lib, "ibv_close_device", "IBVERBS_1.1");
	int n = 0;
	struct ibv_device **all = list(&n);
	for (int i = 0; all && i < n; i++) {
		struct ibv_context *c = opened(all[i]);
		if (!c || closed(c)) {
			fprintf(stderr, "cannot open and close device %d\n", i);
			return 1;
		}
		printf("%s\n", name(all[i]));
	}
	return 0;
}
