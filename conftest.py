"""What cannot be collected where an optional dependency is missing."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("flwr") else ["src/fedtern/transports/flower"]
