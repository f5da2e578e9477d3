"""Model shapes and the decoder that computes them."""
