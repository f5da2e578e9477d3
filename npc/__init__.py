"""Characters: who speaks, what they know, and what they have heard. See `npc.cast`."""
