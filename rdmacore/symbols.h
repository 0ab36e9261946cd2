// The functions of libibverbs that are called by name.

#ifndef IBVERBX_SYMBOLS_H
#define IBVERBX_SYMBOLS_H

#include "abi.h"

#include <sys/types.h>

// SYMBOLS lists the functions called by name: result, name, arguments, version, and whether a
// library may lack it. Posting and polling go through the context.
#define SYMBOLS(S) \
	S(struct vb_device **, get_device_list, (int *), "ibv_get_device_list", "IBVERBS_1.1", 1) \
	S(void, free_device_list, (struct vb_device **), "ibv_free_device_list", "IBVERBS_1.1", 1) \
	S(uint64_t, get_device_guid, (struct vb_device *), "ibv_get_device_guid", "IBVERBS_1.1", 1) \
	S(struct vb_context *, open_device, (struct vb_device *), "ibv_open_device", "IBVERBS_1.1", 1) \
	S(int, close_device, (struct vb_context *), "ibv_close_device", "IBVERBS_1.1", 1) \
	S(int, query_device, (struct vb_context *, struct vb_device_attr *), "ibv_query_device", "IBVERBS_1.1", 1) \
	S(int, query_port, (struct vb_context *, uint8_t, struct vb_port_attr *), "ibv_query_port", "IBVERBS_1.1", 1) \
	S(int, query_gid, (struct vb_context *, uint8_t, int, struct vb_gid *), "ibv_query_gid", "IBVERBS_1.1", 1) \
	S(struct vb_pd *, alloc_pd, (struct vb_context *), "ibv_alloc_pd", "IBVERBS_1.1", 1) \
	S(int, dealloc_pd, (struct vb_pd *), "ibv_dealloc_pd", "IBVERBS_1.1", 1) \
	S(struct vb_mr *, reg_mr, (struct vb_pd *, void *, size_t, int), "ibv_reg_mr", "IBVERBS_1.1", 1) \
	S(int, dereg_mr, (struct vb_mr *), "ibv_dereg_mr", "IBVERBS_1.1", 1) \
	S(struct vb_comp_channel *, create_channel, (struct vb_context *), "ibv_create_comp_channel", "IBVERBS_1.0", 1) \
	S(int, destroy_channel, (struct vb_comp_channel *), "ibv_destroy_comp_channel", "IBVERBS_1.0", 1) \
	S(struct vb_cq *, create_cq, (struct vb_context *, int, void *, struct vb_comp_channel *, int), "ibv_create_cq", \
	  "IBVERBS_1.1", 1) \
	S(int, destroy_cq, (struct vb_cq *), "ibv_destroy_cq", "IBVERBS_1.1", 1) \
	S(int, get_cq_event, (struct vb_comp_channel *, struct vb_cq **, void **), "ibv_get_cq_event", "IBVERBS_1.1", 1) \
	S(void, ack_cq_events, (struct vb_cq *, unsigned int), "ibv_ack_cq_events", "IBVERBS_1.1", 1) \
	S(struct vb_srq *, create_srq, (struct vb_pd *, struct vb_srq_init_attr *), "ibv_create_srq", "IBVERBS_1.1", 1) \
	S(int, modify_srq, (struct vb_srq *, struct vb_srq_attr *, int), "ibv_modify_srq", "IBVERBS_1.1", 1) \
	S(int, destroy_srq, (struct vb_srq *), "ibv_destroy_srq", "IBVERBS_1.1", 1) \
	S(struct vb_qp *, create_qp, (struct vb_pd *, struct vb_qp_init_attr *), "ibv_create_qp", "IBVERBS_1.1", 1) \
	S(int, query_qp, (struct vb_qp *, struct vb_qp_attr *, int, struct vb_qp_init_attr *), "ibv_query_qp", "IBVERBS_1.1", \
	  1) \
	S(int, modify_qp, (struct vb_qp *, struct vb_qp_attr *, int), "ibv_modify_qp", "IBVERBS_1.1", 1) \
	S(int, destroy_qp, (struct vb_qp *), "ibv_destroy_qp", "IBVERBS_1.1", 1) \
	S(struct vb_ah *, create_ah, (struct vb_pd *, struct vb_ah_attr *), "ibv_create_ah", "IBVERBS_1.1", 1) \
	S(int, destroy_ah, (struct vb_ah *), "ibv_destroy_ah", "IBVERBS_1.1", 1) \
	S(int, get_async_event, (struct vb_context *, struct vb_async_event *), "ibv_get_async_event", "IBVERBS_1.1", 1) \
	S(void, ack_async_event, (struct vb_async_event *), "ibv_ack_async_event", "IBVERBS_1.1", 1) \
	S(int, fork_init, (void), "ibv_fork_init", "IBVERBS_1.1", 0) \
	S(struct vb_mr *, reg_mr_iova2, (struct vb_pd *, void *, size_t, uint64_t, unsigned int), "ibv_reg_mr_iova2", \
	  "IBVERBS_1.8", 0) \
	S(int, query_gid_ex, (struct vb_context *, uint32_t, uint32_t, struct vb_gid_entry *, uint32_t, size_t), \
	  "_ibv_query_gid_ex", "IBVERBS_1.11", 0) \
	S(ssize_t, query_gid_table, (struct vb_context *, struct vb_gid_entry *, size_t, uint32_t, size_t), \
	  "_ibv_query_gid_table", "IBVERBS_1.11", 0) \
	S(struct vb_mr *, reg_dmabuf_mr, (struct vb_pd *, uint64_t, size_t, uint64_t, int, int), "ibv_reg_dmabuf_mr", \
	  "IBVERBS_1.12", 0)

struct library {
	void *handle;
#define MEMBER(result, name, args, symbol, version, needed) result(*name) args;
	SYMBOLS(MEMBER)
#undef MEMBER
};

#endif
