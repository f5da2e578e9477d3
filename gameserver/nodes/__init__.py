"""Several nodes: which of them runs a scene, and how players get there."""
