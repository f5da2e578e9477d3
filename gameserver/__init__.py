"""Players, sockets, scenes that run, and the console: the top of the house."""
