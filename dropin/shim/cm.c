// The connection manager: /dev/infiniband/rdma_cm without a kernel. librdmacm writes commands to that file; preload/cm.c passes
// them on. The file is an event descriptor with a token per event.
#define _GNU_SOURCE
#include "shim.h"

#include <fcntl.h>
#include <infiniband/sa.h>
#include <rdma/ib_user_sa.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/rdma_user_cm.h>
#include <sys/eventfd.h>

_Static_assert(sizeof(struct rdma_ucm_event_resp) <= IBX_CM_RESPONSE, "the longest response");

// ibx_cm_file returns the file of a descriptor, 0 if it has none.
uint32_t ibx_cm_file(int fd) __attribute__((weak));

// ibx_cm_open returns a descriptor, or -1 and errno.
int ibx_cm_open(int flags, uint32_t *file)
{
	int err = ibx_load(), fd = -1;
	if (!err) {
		fd = eventfd(0, EFD_SEMAPHORE | (flags & O_CLOEXEC ? EFD_CLOEXEC : 0) | (flags & O_NONBLOCK ? EFD_NONBLOCK : 0));
		err = fd < 0 ? errno : core.cm_open(fd, file);
	}
	if (!err)
		return fd;
	if (fd >= 0)
		close(fd);
	errno = err;
	return -1;
}

void ibx_cm_close(uint32_t file) { core.cm_close(file); }

// respond copies a response to where the command wants it.
static void respond(const struct rdma_ucm_cmd_hdr *header, const void *response, size_t size)
{
	const char *body = (const char *)(header + 1);
	uint64_t to;
	memcpy(&to, body + (header->cmd == RDMA_USER_CM_CMD_CREATE_ID ? offsetof(struct rdma_ucm_create_id, response) : 0), sizeof(to));
	memcpy((void *)(uintptr_t)to, response, size < header->out ? size : header->out);
}

// ibx_cm_write executes a command. It returns what write would.
ssize_t ibx_cm_write(int fd, uint32_t file, const void *command, size_t size)
{
	struct rdma_ucm_cmd_hdr header;
	char response[IBX_CM_RESPONSE];
	uint32_t length = 0, from = 0;
	struct rdma_ucm_set_option option = {0};
	if (size < sizeof(header) || size > UINT16_MAX) {
		errno = EINVAL;
		return -1;
	}
	memcpy(&header, command, sizeof(header));
	const char *body = (const char *)command + sizeof(header);
	if (header.cmd == RDMA_USER_CM_CMD_SET_OPTION && size >= sizeof(header) + sizeof(option))
		memcpy(&option, body, sizeof(option));
	if (option.optlen && !option.optval) {
		errno = EFAULT;
		return -1;
	}
	if (header.cmd == RDMA_USER_CM_CMD_MIGRATE_ID && size >= sizeof(header) + sizeof(struct rdma_ucm_migrate_id) && ibx_cm_file) {
		struct rdma_ucm_migrate_id migrate;
		memcpy(&migrate, body, sizeof(migrate));
		from = ibx_cm_file((int)migrate.fd);
	}
	int err;
	do { // a token without an event belonged to an id that is gone
		if (ibx_forked)
			err = ENODEV;
		else if (header.cmd == RDMA_USER_CM_CMD_GET_EVENT && ibx_take(fd))
			return -1;
		else
			err = core.cm_command(file, command, (uint32_t)size, (void *)(uintptr_t)option.optval, option.optlen, from, response, &length);
	} while (err == EAGAIN && header.cmd == RDMA_USER_CM_CMD_GET_EVENT);
	if (err) {
		errno = err;
		return -1;
	}
	if (length)
		respond(command, response, length);
	return (ssize_t)size;
}

void ibv_copy_ah_attr_from_kern(struct ibv_ah_attr *to, struct ib_uverbs_ah_attr *from)
{
	*to = (struct ibv_ah_attr){
		.grh = {.flow_label = from->grh.flow_label, .sgid_index = from->grh.sgid_index, .hop_limit = from->grh.hop_limit, .traffic_class = from->grh.traffic_class},
		.dlid = from->dlid, .sl = from->sl, .src_path_bits = from->src_path_bits,
		.static_rate = from->static_rate, .is_global = from->is_global, .port_num = from->port_num,
	};
	memcpy(to->grh.dgid.raw, from->grh.dgid, sizeof(to->grh.dgid));
}

// The state of the QP stays: the caller has set the one that it wants.
void ibv_copy_qp_attr_from_kern(struct ibv_qp_attr *to, struct ib_uverbs_qp_attr *from)
{
	*to = (struct ibv_qp_attr){
		.qp_state = to->qp_state, .cur_qp_state = from->cur_qp_state, .path_mtu = from->path_mtu, .path_mig_state = from->path_mig_state,
		.qkey = from->qkey, .rq_psn = from->rq_psn, .sq_psn = from->sq_psn, .dest_qp_num = from->dest_qp_num, .qp_access_flags = from->qp_access_flags,
		.cap = {from->max_send_wr, from->max_recv_wr, from->max_send_sge, from->max_recv_sge, from->max_inline_data},
		.pkey_index = from->pkey_index, .alt_pkey_index = from->alt_pkey_index, .port_num = from->port_num, .alt_port_num = from->alt_port_num,
		.en_sqd_async_notify = from->en_sqd_async_notify, .sq_draining = from->sq_draining,
		.max_rd_atomic = from->max_rd_atomic, .max_dest_rd_atomic = from->max_dest_rd_atomic, .min_rnr_timer = from->min_rnr_timer,
		.timeout = from->timeout, .retry_cnt = from->retry_cnt, .rnr_retry = from->rnr_retry, .alt_timeout = from->alt_timeout,
	};
	ibv_copy_ah_attr_from_kern(&to->ah_attr, &from->ah_attr);
	ibv_copy_ah_attr_from_kern(&to->alt_ah_attr, &from->alt_ah_attr);
}

void ibv_copy_path_rec_from_kern(struct ibv_sa_path_rec *to, struct ib_user_path_rec *from)
{
	*to = (struct ibv_sa_path_rec){
		.dlid = from->dlid, .slid = from->slid, .raw_traffic = (int)from->raw_traffic, .flow_label = from->flow_label,
		.hop_limit = from->hop_limit, .traffic_class = from->traffic_class, .reversible = (int)from->reversible,
		.numb_path = from->numb_path, .pkey = from->pkey, .sl = from->sl, .mtu_selector = from->mtu_selector, .mtu = (enum ibv_mtu)from->mtu,
		.rate_selector = from->rate_selector, .rate = from->rate, .preference = from->preference,
		.packet_life_time_selector = from->packet_life_time_selector, .packet_life_time = from->packet_life_time,
	};
	memcpy(to->dgid.raw, from->dgid, sizeof(to->dgid));
	memcpy(to->sgid.raw, from->sgid, sizeof(to->sgid));
}
