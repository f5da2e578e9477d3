"""The inference engine: paged attention, continuous batching, shared prefixes.

It knows tokens, blocks, rows and integer priority classes, nothing about games. See `engine.api`.
"""
