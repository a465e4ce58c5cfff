"""Codecs, methods and the protocol: NumPy and Numba only, no I/O."""
