"""Handwritten digits, learned by a few nodes."""
