// Protection domains and memory regions.
#define _GNU_SOURCE
#include "shim.h"

static struct ibv_pd *new_pd(struct ibv_context *base, uint32_t handle, struct pd *parent)
{
	struct pd *p = calloc(1, sizeof(*p));
	if (!p)
		return fail(ENOMEM);
	p->base.context = base;
	p->base.handle = handle;
	p->parent = parent;
	return &p->base;
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *base)
{
	uint32_t handle;
	int err = core.alloc_pd(ctx_handle(base), &handle);
	if (err)
		return fail(err);
	struct ibv_pd *pd = new_pd(base, handle, NULL);
	if (!pd)
		core.dealloc_pd(handle);
	return pd;
}

// alloc_parent_domain returns another name of a domain. Thread domains and allocators are hints to hardware drivers.
static struct ibv_pd *alloc_parent_domain(struct ibv_context *base, struct ibv_parent_domain_init_attr *attr)
{
	if (!attr->pd || attr->comp_mask & ~(uint32_t)(IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT))
		return fail(EINVAL);
	struct pd *of = to_pd(attr->pd);
	struct ibv_pd *pd = new_pd(base, of->base.handle, of);
	if (pd)
		__atomic_add_fetch(&of->children, 1, __ATOMIC_SEQ_CST);
	return pd;
}

int ibv_dealloc_pd(struct ibv_pd *base)
{
	struct pd *p = to_pd(base);
	if (__atomic_load_n(&p->children, __ATOMIC_SEQ_CST))
		return EBUSY;
	if (p->parent) {
		__atomic_sub_fetch(&p->parent->children, 1, __ATOMIC_SEQ_CST);
	} else {
		int err = core.dealloc_pd(base->handle);
		if (err)
			return err;
	}
	free(p);
	return 0;
}

static struct ibv_td *alloc_td(struct ibv_context *base, struct ibv_td_init_attr *attr)
{
	if (attr->comp_mask)
		return fail(EINVAL);
	struct ibv_td *td = calloc(1, sizeof(*td));
	if (!td)
		return fail(ENOMEM);
	td->context = base;
	return td;
}

static int dealloc_td(struct ibv_td *td)
{
	free(td);
	return 0;
}

// access_flags translates access flags into those of the core. Optional ones that it does not know are hints. It
// returns false if another one is left.
static bool access_flags(unsigned int access, uint32_t *flags)
{
	const unsigned int known = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
	const unsigned int hints = IBV_ACCESS_OPTIONAL_RANGE | IBV_ACCESS_HUGETLB | IBV_ACCESS_ZERO_BASED;
	*flags = access & known;
	return !(access & ~(known | hints));
}

// mr is a region, with what is needed to register it again.
struct mr {
	struct ibv_mr base;
	unsigned int access;
	uint64_t iova;
};

// reg registers memory that work requests address from iova.
static int reg(struct mr *mr, struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned int access)
{
	uint32_t flags, key, handle;
	if (!access_flags(access, &flags))
		return EOPNOTSUPP;
	if (access & IBV_ACCESS_ZERO_BASED)
		iova = 0;
	int err = core.reg_mr(pd->handle, addr, length, iova, flags, &handle, &key);
	if (err)
		return err;
	mr->base = (struct ibv_mr){
		.context = pd->context, .pd = pd, .addr = addr, .length = length, .handle = handle, .lkey = key, .rkey = key};
	mr->access = access;
	mr->iova = iova;
	return 0;
}

static struct ibv_mr *new_mr(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned int access)
{
	struct mr *mr = calloc(1, sizeof(*mr));
	if (!mr)
		return fail(ENOMEM);
	int err = reg(mr, pd, addr, length, iova, access);
	if (err) {
		free(mr);
		return fail(err);
	}
	return &mr->base;
}

#undef ibv_reg_mr
struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	return new_mr(pd, addr, length, (uintptr_t)addr, (unsigned int)access);
}

#undef ibv_reg_mr_iova
struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, int access)
{
	return new_mr(pd, addr, length, iova, (unsigned int)access);
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned int access)
{
	return new_mr(pd, addr, length, iova, access);
}

struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access)
{
	(void)pd, (void)offset, (void)length, (void)iova, (void)fd, (void)access;
	return fail(EOPNOTSUPP);
}

int ibv_dereg_mr(struct ibv_mr *mr)
{
	int err = core.dereg_mr(mr->handle);
	if (!err)
		free(container_of(mr, struct mr, base));
	return err;
}

// ibv_rereg_mr changes a region, whose keys stay. If it fails, the region stays as it was.
int ibv_rereg_mr(struct ibv_mr *base, int flags, struct ibv_pd *pd, void *addr, size_t length, int access)
{
	struct mr *mr = container_of(base, struct mr, base);
	if (!flags || flags & ~IBV_REREG_MR_FLAGS_SUPPORTED || (flags & IBV_REREG_MR_CHANGE_PD && !pd) ||
	    (flags & IBV_REREG_MR_CHANGE_TRANSLATION && (!addr || !length)) || (flags & IBV_REREG_MR_CHANGE_ACCESS && access < 0)) {
		errno = EINVAL;
		return IBV_REREG_MR_ERR_INPUT;
	}
	if (!(flags & IBV_REREG_MR_CHANGE_PD))
		pd = base->pd;
	uint64_t iova = mr->iova;
	if (flags & IBV_REREG_MR_CHANGE_TRANSLATION)
		iova = (uintptr_t)addr;
	else
		addr = base->addr, length = base->length;
	unsigned int rights = flags & IBV_REREG_MR_CHANGE_ACCESS ? (unsigned int)access : mr->access;
	uint32_t known;
	if (rights & IBV_ACCESS_ZERO_BASED)
		iova = 0;
	int err = access_flags(rights, &known) ? core.rereg_mr(base->handle, pd->handle, addr, length, iova, known) : EOPNOTSUPP;
	if (err) {
		errno = err;
		return IBV_REREG_MR_ERR_INPUT;
	}
	base->pd = pd;
	base->addr = addr;
	base->length = length;
	mr->access = rights;
	mr->iova = iova;
	return 0;
}

struct ibv_pd *ibv_import_pd(struct ibv_context *base, uint32_t handle) { (void)base, (void)handle; return fail(EOPNOTSUPP); }
void ibv_unimport_pd(struct ibv_pd *pd) { (void)pd; }
struct ibv_mr *ibv_import_mr(struct ibv_pd *pd, uint32_t handle) { (void)pd, (void)handle; return fail(EOPNOTSUPP); }
void ibv_unimport_mr(struct ibv_mr *mr) { (void)mr; }
struct ibv_dm *ibv_import_dm(struct ibv_context *base, uint32_t handle) { (void)base, (void)handle; return fail(EOPNOTSUPP); }
void ibv_unimport_dm(struct ibv_dm *dm) { (void)dm; }

static struct ibv_mw *alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type) { (void)pd, (void)type; return fail(EOPNOTSUPP); }
static int dealloc_mw(struct ibv_mw *mw) { (void)mw; return EOPNOTSUPP; }

static int bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *bind)
{
	(void)qp, (void)mw, (void)bind;
	return EOPNOTSUPP;
}

void ibx_memory_ops(struct verbs_context *v)
{
	v->alloc_parent_domain = alloc_parent_domain;
	v->alloc_td = alloc_td;
	v->dealloc_td = dealloc_td;
	v->context.ops.alloc_mw = alloc_mw;
	v->context.ops.dealloc_mw = dealloc_mw;
	v->context.ops.bind_mw = bind_mw;
}
