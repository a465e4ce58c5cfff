"""Train on handwritten digits with a few nodes."""
