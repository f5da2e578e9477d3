"""Quests: state machines that authors write, the game moves, and NPCs speak by."""
