// Package nccl tests the NCCL plugin: with a program that calls every table as NCCL does, with NCCL's own headers if they are installed,
// and with PyTorch on a machine with a GPU.
package nccl
