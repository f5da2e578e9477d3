"""What an NPC remembers of a player over days."""
