"""Character cards and lorebooks of others: read, turned into packs of ours, and written back."""
