"""Sentences to vectors, with a small model of their own."""
