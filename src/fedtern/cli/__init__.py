"""The command line: what is on the screen, and nothing else."""

from fedtern.cli.app import app

__all__ = ["app"]
