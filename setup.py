"""The compiled kernels. Everything else about the package is in pyproject.toml."""

from setuptools import Extension, setup

# Without fused multiply-add, so that every platform computes the same bits.
FLAGS = ["-std=c99", "-O3", "-Wall", "-Wextra", "-ffp-contract=off"]

setup(
    ext_modules=[
        Extension(
            "fedtern.core.kernels.compiled",
            ["native/kernels.c", "native/adaptive.c", "native/python_module.c"],
            depends=["native/fedtern.h"],
            include_dirs=["native"],
            define_macros=[("Py_LIMITED_API", "0x030B0000")],
            extra_compile_args=FLAGS,
            py_limited_api=True,
            # Without a compiler, the installation succeeds and the kernels in NumPy serve.
            optional=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
