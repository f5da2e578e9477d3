"""Players at one node whose scene is at another: the first carries what they and the second say.

See docs/decisions/0025-a-relay-of-whole-sessions.md.
"""
