"""``fedtern reproduce``: the command that makes the paper's tables and figures."""

from fedtern_paper.cli.command import reproduce

__all__ = ["reproduce"]
