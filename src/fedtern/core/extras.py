"""Import optional dependencies, with an error that says how to install them."""

from __future__ import annotations

import importlib
from types import ModuleType

from fedtern.core.errors import MissingExtraError

_NAME = "fedtern"  # of the distribution


def require(module: str, extra: str, user: str) -> ModuleType:
    """Import a module of an optional dependency.

    Args:
        module: the module.
        extra: the extra of fedtern that installs it.
        user: what needs the module, for the error message.

    Raises:
        MissingExtraError: the module is not installed.

    >>> require("surely_absent", "torch", "this example")
    ... # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    ...
    fedtern.core.errors.MissingExtraError: this example needs surely_absent, which is not installed:
    pip install ...
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        # A package that is installed but broken needs another remedy.
        package = module.partition(".")[0]
        if error.name is None or error.name.partition(".")[0] != package:
            raise
        raise MissingExtraError(
            f"{user} needs {package}, which is not installed: {install_command(extra)}"
        ) from None


def install_command(extra: str) -> str:
    """Return the command that adds an extra, from where this package was installed.

    An installer records that place, unless it was a package index (PEP 610). The command names the
    bare package only if an index had it under this name.
    """
    from importlib.metadata import distributions  # slow to import

    # A checkout on the path has metadata too, but no installer.
    installed = [d for d in distributions(name=_NAME) if d.read_text("INSTALLER")]
    if not installed:
        return f"pip install '.[{extra}]' in a clone of {_NAME}"
    return _command_from(installed[0].read_text("direct_url.json"), extra)


def _command_from(origin: str | None, extra: str) -> str:
    """Return the command for the text of ``direct_url.json``; None if there is no such file.

    >>> _command_from(None, "torch")
    "pip install 'fedtern[torch]'"
    >>> _command_from('{"url": "file:///a%20b", "dir_info": {"editable": true}}', "cli")
    "pip install -e '/a b[cli]'"
    >>> _command_from('{"url": "file:///fedtern.whl", "archive_info": {}}', "cli")
    "pip install 'fedtern[cli] @ file:///fedtern.whl'"
    >>> _command_from('{"url": "https://a.b/c", "vcs_info": {"vcs": "git"}}', "cli")
    "pip install 'fedtern[cli] @ git+https://a.b/c'"
    """
    import json
    from urllib.parse import unquote, urlsplit

    if origin is None:
        return f"pip install '{_NAME}[{extra}]'"
    found = json.loads(origin)
    url = found["url"]
    if found.get("dir_info", {}).get("editable"):
        return f"pip install -e '{unquote(urlsplit(url).path)}[{extra}]'"
    if "vcs_info" in found:
        url = f"{found['vcs_info']['vcs']}+{url}"
    return f"pip install '{_NAME}[{extra}] @ {url}'"


__all__ = ["install_command", "require"]
