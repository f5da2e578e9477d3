"""What a node bears: very many players, slow ones, hostile ones, storms. See `__main__`."""
