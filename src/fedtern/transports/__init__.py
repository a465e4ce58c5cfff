"""Engines that carry messages between a server and its clients."""
