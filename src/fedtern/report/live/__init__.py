"""The live page: runs and federations in a browser while they train.

It needs nothing but the standard library and the files of run directories.
"""

from fedtern.report.live.server import LiveServer
from fedtern.report.live.watcher import Watcher

__all__ = ["LiveServer", "Watcher"]
