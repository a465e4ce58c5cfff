"""A large model on a few nodes, to measure time and memory."""
