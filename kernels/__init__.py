"""Tensor operations; nothing here knows of tokens, scenes or players."""
