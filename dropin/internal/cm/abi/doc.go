// Package abi translates commands that librdmacm writes to /dev/infiniband/rdma_cm
// (rdma/rdma_user_cm.h, version 4) into calls of package cm. It supports the commands that
// librdmacm uses on kernels without AF_IB. Others return EINVAL, which makes librdmacm fall back to
// these.
package abi
