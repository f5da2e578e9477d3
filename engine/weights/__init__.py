"""Finding and reading model files."""
