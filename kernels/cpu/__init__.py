"""Fast implementations for CPUs."""
