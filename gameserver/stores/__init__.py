"""Where worlds, sessions and transcripts are kept: in memory, in a SQLite file, or in Redis."""
