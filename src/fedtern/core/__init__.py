"""Codecs, methods and the protocol: NumPy only, no I/O."""
