"""Places: what is true in them, and the prompt prefixes they need. See `scenes.pack`."""
