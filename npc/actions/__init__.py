"""What NPCs do beside talking: which actions are open, and how they are read from a reply."""
