// Package abi translates what librdmacm writes to /dev/infiniband/rdma_cm (rdma/rdma_user_cm.h, version 4) into calls of package cm. It has
// the commands that librdmacm uses with a kernel without AF_IB; the others return EINVAL, so that it uses these.
package abi
