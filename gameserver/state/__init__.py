"""World state: registers with stamps, their way to clients, and who may write and hear what."""
