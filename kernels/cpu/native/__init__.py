"""Kernels compiled on the machine they run on, by LLVM through numba; no C compiler is needed."""
