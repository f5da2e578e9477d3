"""`troupe bench`: how fast a server speaks, ours or another's."""
