// Package abi translates commands that librdmacm writes to /dev/infiniband/rdma_cm
// (rdma/rdma_user_cm.h, version 4) into calls of package cm. It supports the commands that
// librdmacm uses on kernels without AF_IB. Others return EINVAL, which makes librdmacm fall back to
// these.
//
// [Do] executes one command on a cm.File and returns its response. The layouts (layout.go) are fixed
// by the kernel; the code behind Do may change freely.
package abi
