"""The version of this package."""

__version__ = "0.2.0"


def describe_version() -> str:
    """Return the line that ``fedtern --version`` prints.

    >>> describe_version().startswith(f"fedtern {__version__}, kernels: ")
    True
    """
    from fedtern.core.kernels import describe_kernels  # imports NumPy

    return f"fedtern {__version__}, kernels: {describe_kernels()}"


__all__ = ["__version__", "describe_version"]
