"""Triton kernels. Nothing is imported here: a machine without Triton can import the package."""
