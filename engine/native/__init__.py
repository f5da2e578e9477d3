"""The engine's fast path on a CPU: a forward pass compiled for this machine."""
