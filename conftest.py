"""Modules that pytest cannot collect without an optional dependency."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("flwr") else ["src/fedtern/transports/flower"]
