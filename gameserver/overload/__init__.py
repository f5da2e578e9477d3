"""Too much to do: who is let in, and what is left out for the others."""
