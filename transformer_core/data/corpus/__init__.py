"""From corpora to sentence pairs: downloading, reading, filtering."""
