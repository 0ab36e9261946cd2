// Devices, contexts and what they can tell.
#define _GNU_SOURCE
#include "shim.h"

#include <arpa/inet.h>
#include <endian.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/eventfd.h>

// device leaves room for the private part that libraries of hardware drivers look for behind a device. It is zero:
// the device is none of theirs.
struct device {
	struct ibv_device base;
	char others[1024];
};

static struct device devices[IBX_MAX_DEVICES];
static pthread_once_t named = PTHREAD_ONCE_INIT;

static void name_devices(void)
{
	for (int i = 0; i < ibx_num_devices; i++) {
		struct ibv_device *d = &devices[i].base;
		d->node_type = IBV_NODE_CA;
		d->transport_type = IBV_TRANSPORT_IB;
		snprintf(d->name, sizeof(d->name), "%s", ibx_devices[i].name);
		snprintf(d->dev_name, sizeof(d->dev_name), "uverbs%d", i);
		snprintf(d->dev_path, sizeof(d->dev_path), "/sys/class/infiniband_verbs/uverbs%d", i);
		snprintf(d->ibdev_path, sizeof(d->ibdev_path), "/sys/class/infiniband/%s", d->name);
	}
}

struct ibv_device **ibv_get_device_list(int *num)
{
	int err = ibx_load();
	if (num)
		*num = 0;
	if (err)
		return fail(err);
	pthread_once(&named, name_devices);
	struct ibv_device **list = calloc(ibx_num_devices + 1, sizeof(*list));
	if (!list)
		return fail(ENOMEM);
	for (int i = 0; i < ibx_num_devices; i++)
		list[i] = &devices[i].base;
	if (num)
		*num = ibx_num_devices;
	return list;
}

void ibv_free_device_list(struct ibv_device **list) { free(list); }
const char *ibv_get_device_name(struct ibv_device *d) { return d->name; }
int ibv_get_device_index(struct ibv_device *d) { return (int)((struct device *)d - devices); }
__be64 ibv_get_device_guid(struct ibv_device *d) { return htobe64(ibx_devices[ibv_get_device_index(d)].guid); }

struct ibv_context *ibv_open_device(struct ibv_device *d)
{
	if (ibx_forked)
		return fail(ENODEV);
	struct context *c = calloc(1, sizeof(*c));
	if (!c)
		return fail(ENOMEM);
	struct ibv_context *base = &c->verbs.context;
	base->async_fd = eventfd(0, EFD_CLOEXEC);
	int err = base->async_fd < 0 ? errno : core.open(ibv_get_device_index(d), base->async_fd, &c->handle);
	if (err) {
		if (base->async_fd >= 0)
			close(base->async_fd);
		free(c);
		return fail(err);
	}
	static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
	union ibv_gid gid;
	if (!core.query_gid(c->handle, 1, 0, gid.raw)) {
		c->ipv6 = memcmp(gid.raw, mapped, sizeof(mapped)) != 0;
		memset(gid.raw, 0, 8); // a UDP port
		if (!memcmp(gid.raw, mapped, sizeof(mapped)) && gid.raw[12] == 127)
			c->loopback = gid;
	}
	base->device = d;
	base->cmd_fd = fcntl(base->async_fd, F_DUPFD_CLOEXEC, 0); // commands to a kernel have none; programs may duplicate it
	base->num_comp_vectors = 1;
	base->abi_compat = __VERBS_ABI_IS_EXTENDED;
	pthread_mutex_init(&base->mutex, NULL);
	c->verbs.sz = sizeof(struct verbs_context);
	ibx_device_ops(&c->verbs);
	ibx_memory_ops(&c->verbs);
	ibx_cq_ops(&c->verbs);
	ibx_srq_ops(&c->verbs);
	ibx_qp_ops(&c->verbs);
	ibx_post_ops(&c->verbs);
	return base;
}

int ibv_close_device(struct ibv_context *base)
{
	struct context *c = to_context(base);
	int err = core.close(c->handle);
	if (err) {
		errno = err;
		return -1;
	}
	close(base->async_fd);
	if (base->cmd_fd >= 0)
		close(base->cmd_fd);
	free(c);
	return 0;
}

enum {
	no_vendor = 0xffffff, // what Soft-RoCE reports too
	max_groups = 64, // of softnic
};

int ibv_query_device(struct ibv_context *base, struct ibv_device_attr *a)
{
	struct ibx_device_attr d = {0};
	int err = core.query_device(ctx_handle(base), &d);
	if (err)
		return err;
	*a = (struct ibv_device_attr){
		.node_guid = htobe64(d.guid),
		.sys_image_guid = htobe64(d.guid),
		.max_mr_size = d.max_mr_size,
		.page_size_cap = 0xfffff000,
		.vendor_id = no_vendor,
		.max_qp = d.max_qp,
		.max_qp_wr = d.max_qp_wr,
		.device_cap_flags = IBV_DEVICE_CURR_QP_STATE_MOD | IBV_DEVICE_RC_RNR_NAK_GEN |
				    IBV_DEVICE_SYS_IMAGE_GUID | IBV_DEVICE_PORT_ACTIVE_EVENT,
		.max_sge = d.max_sge,
		.max_sge_rd = d.max_sge,
		.max_cq = d.max_cq,
		.max_cqe = d.max_cqe,
		.max_mr = d.max_mr,
		.max_pd = d.max_pd,
		.max_qp_rd_atom = d.max_qp_rd_atom,
		.max_res_rd_atom = d.max_qp_rd_atom * d.max_qp,
		.max_qp_init_rd_atom = d.max_qp_init_rd_atom,
		.atomic_cap = IBV_ATOMIC_HCA,
		.max_ah = d.max_ah,
		.max_srq = d.max_srq,
		.max_srq_wr = d.max_srq_wr,
		.max_srq_sge = d.max_srq_sge,
		.max_mcast_grp = max_groups,
		.max_mcast_qp_attach = d.max_qp,
		.max_total_mcast_qp_attach = max_groups * d.max_qp,
		.max_pkeys = 1,
		.phys_port_cnt = 1,
	};
	memcpy(a->fw_ver, d.fw, sizeof(d.fw));
	return 0;
}

static int query_device_ex(struct ibv_context *base, const struct ibv_query_device_ex_input *input, struct ibv_device_attr_ex *a, size_t size)
{
	struct ibv_device_attr_ex ex = {0};
	uint64_t ticks, hz;
	if (input && input->comp_mask)
		return EINVAL;
	int err = ibv_query_device(base, &ex.orig_attr);
	if (err)
		return err;
	if (!core.read_clock(ctx_handle(base), &ticks, &hz)) {
		ex.completion_timestamp_mask = UINT64_MAX;
		ex.hca_core_clock = hz / 1000; // in kHz
	}
	ex.phys_port_cnt_ex = 1;
	memcpy(a, &ex, size < sizeof(ex) ? size : sizeof(ex));
	return 0;
}

static int query_rt_values(struct ibv_context *base, struct ibv_values_ex *values)
{
	uint64_t ticks, hz;
	if (values->comp_mask & ~(uint32_t)IBV_VALUES_MASK_RAW_CLOCK)
		return EINVAL;
	int err = core.read_clock(ctx_handle(base), &ticks, &hz);
	values->comp_mask = 0;
	if (!err) {
		values->comp_mask = IBV_VALUES_MASK_RAW_CLOCK;
		values->raw_clock = (struct timespec){.tv_nsec = (long)ticks}; // in ticks, as drivers report it
	}
	return err;
}

// The width and speed that QDR has, 32 Gb/s. It is near what the loopback carries; programs expect some value.
enum { width4x = 2, speedQDR = 4, physLinkUp = 5, physDisabled = 3 };

static int query_port(struct ibv_context *base, uint8_t port, struct ibv_port_attr *a, size_t size)
{
	struct ibx_port_attr p = {0};
	int err = core.query_port(ctx_handle(base), port, &p);
	if (err)
		return err;
	struct ibv_port_attr full = {
		.state = p.state,
		.max_mtu = p.max_mtu,
		.active_mtu = p.active_mtu,
		.gid_tbl_len = (int)p.gids,
		.port_cap_flags = IBV_PORT_CM_SUP | IBV_PORT_IP_BASED_GIDS,
		.max_msg_sz = (uint32_t)p.max_msg,
		.pkey_tbl_len = (uint16_t)p.pkeys,
		.lid = (uint16_t)p.lid,
		.max_vl_num = 1,
		.active_width = width4x,
		.active_speed = speedQDR,
		.phys_state = p.state == IBV_PORT_ACTIVE ? physLinkUp : physDisabled,
		.link_layer = (uint8_t)p.link_layer,
		.flags = IBV_QPF_GRH_REQUIRED,
	};
	memcpy(a, &full, size < sizeof(full) ? size : sizeof(full));
	return 0;
}

#undef ibv_query_port
// ibv_query_port is the entry of programs built before ibv_port_attr grew.
int ibv_query_port(struct ibv_context *base, uint8_t port, struct _compat_ibv_port_attr *a)
{
	return query_port(base, port, (struct ibv_port_attr *)a, offsetof(struct ibv_port_attr, port_cap_flags2));
}

int ibv_query_gid(struct ibv_context *base, uint8_t port, int index, union ibv_gid *gid)
{
	int err = core.query_gid(ctx_handle(base), port, index, gid->raw);
	if (err) {
		errno = err;
		return -1;
	}
	return 0;
}

int _ibv_query_gid_ex(struct ibv_context *base, uint32_t port, uint32_t index, struct ibv_gid_entry *entry, uint32_t flags, size_t size)
{
	struct ibv_gid_entry e = {.gid_index = index, .port_num = port, .gid_type = IBV_GID_TYPE_ROCE_V2};
	struct ibx_port_attr p = {0};
	if (flags)
		return EOPNOTSUPP;
	int err = core.query_port(ctx_handle(base), (int32_t)port, &p);
	if (!err)
		err = core.query_gid(ctx_handle(base), (int32_t)port, (int32_t)index, e.gid.raw);
	e.ndev_ifindex = p.ifindex;
	if (!err)
		memcpy(entry, &e, size < sizeof(e) ? size : sizeof(e));
	return err;
}

ssize_t _ibv_query_gid_table(struct ibv_context *base, struct ibv_gid_entry *entries, size_t max, uint32_t flags, size_t size)
{
	struct ibx_port_attr p = {0};
	if (flags)
		return -EOPNOTSUPP;
	int err = core.query_port(ctx_handle(base), 1, &p);
	if (err)
		return -err;
	if (p.gids > max)
		return -EINVAL;
	for (uint32_t i = 0; i < p.gids; i++)
		if ((err = _ibv_query_gid_ex(base, 1, i, (struct ibv_gid_entry *)((char *)entries + i * size), 0, size)))
			return -err;
	return p.gids;
}

// ibv_query_gid_type is private, but perftest and others call it. The type numbers are those of sysfs, in which RoCE v2 is 1.
int ibv_query_gid_type(struct ibv_context *base, uint8_t port, unsigned int index, int *type)
{
	union ibv_gid gid;
	*type = 1;
	return ibv_query_gid(base, port, (int)index, &gid);
}

enum { default_pkey = 0xffff };

int ibv_query_pkey(struct ibv_context *base, uint8_t port, int index, __be16 *pkey)
{
	struct ibx_port_attr p = {0};
	int err = core.query_port(ctx_handle(base), port, &p);
	if (!err && (index < 0 || index >= (int)p.pkeys))
		err = EINVAL;
	if (err) {
		errno = err;
		return -1;
	}
	*pkey = htobe16(default_pkey);
	return 0;
}

int ibv_get_pkey_index(struct ibv_context *base, uint8_t port, __be16 pkey)
{
	__be16 have;
	if (ibv_query_pkey(base, port, 0, &have))
		return -1;
	if (have == pkey)
		return 0;
	errno = EINVAL;
	return -1;
}

int ibv_fork_init(void) { return 0; }
enum ibv_fork_status ibv_is_fork_initialized(void) { return IBV_FORK_UNNEEDED; }
int ibv_dontfork_range(void *base, size_t size) { (void)base, (void)size; return 0; }
int ibv_dofork_range(void *base, size_t size) { (void)base, (void)size; return 0; }

struct ibv_context *ibv_import_device(int fd) { (void)fd; return fail(EOPNOTSUPP); }

const char *ibv_get_sysfs_path(void) { return "/sys"; }

int ibv_read_sysfs_file(const char *dir, const char *file, char *buf, size_t size)
{
	char *path;
	if (asprintf(&path, "%s/%s", dir, file) < 0)
		return -1;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	free(path);
	if (fd < 0)
		return -1;
	ssize_t n = read(fd, buf, size);
	close(fd);
	if (n > 0 && buf[n - 1] == '\n')
		buf[--n] = 0;
	else if (n >= 0 && (size_t)n < size)
		buf[n] = 0;
	return (int)n;
}

void ibx_device_ops(struct verbs_context *v)
{
	v->query_port = query_port;
	v->query_device_ex = query_device_ex;
	v->query_rt_values = query_rt_values;
	v->context.ops._compat_query_device = ibv_query_device;
	v->context.ops._compat_query_port = ibv_query_port;
}
