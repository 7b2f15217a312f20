"""What the encoder-decoder is built from."""
