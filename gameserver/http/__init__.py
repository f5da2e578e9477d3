"""HTTP beside the game: console, metrics, playground."""
