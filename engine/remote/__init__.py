"""Speech from a cluster that speaks OpenAI's API, behind the same face as the engine of our own."""
