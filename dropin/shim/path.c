// The files that a kernel would have about the devices. preload/path.c shows them to the program.
#define _GNU_SOURCE
#include "shim.h"

#include <net/if.h>
#include <stdio.h>

// ibx_path puts the contents of a file into buf and returns their length: 0 for a device, -1 if there is no such file.
int ibx_path(const char *path, char *buf, size_t size);
int ibx_path(const char *path, char *buf, size_t size)
{
	char name[64], table[8];
	int n = -1, row = 0, end = 0;
	if (!strcmp(path, "/dev/infiniband/rdma_cm"))
		return ibx_num_devices ? 0 : -1;
	if (sscanf(path, "/dev/infiniband/uverbs%d%n", &n, &end) == 1 && !path[end])
		return n >= 0 && n < ibx_num_devices ? 0 : -1;
	if (sscanf(path, "/sys/class/infiniband/%63[^/]/ports/1/gid_attrs/%7[^/]/%d%n", name, table, &row, &end) != 3 || path[end])
		return -1;
	for (n = 0; n < ibx_num_devices && strcmp(name, ibx_devices[n].name); n++)
		;
	if (n == ibx_num_devices || row < 0 || row >= (int)ibx_devices[n].gids)
		return -1;
	if (!strcmp(table, "types"))
		return snprintf(buf, size, "RoCE v2\n");
	char interface[IF_NAMESIZE];
	if (strcmp(table, "ndevs") || !if_indextoname(ibx_devices[n].ifindex, interface))
		return -1;
	return snprintf(buf, size, "%s\n", interface);
}
