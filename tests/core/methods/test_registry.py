"""Named methods: registration, specs, digests and publications."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
import pytest

from checks import same
from fedtern import METHODS, Method, register_method, sgd
from fedtern.core.methods import Mean, MethodSpec, make_method, method_from_spec
from fedtern.core.methods.server_optimizers import ServerAdam, ServerMomentum


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_publication_and_lists_existing_functions(name):
    recipe = METHODS[name]
    method = recipe()
    assert method.name == name == recipe.name
    assert recipe.about.endswith(".")
    assert recipe.publication.bibtex.startswith("@")
    assert recipe.publication.bibtex.count("{") == recipe.publication.bibtex.count("}")
    for dotted in recipe.publication.equations.values():
        found = None
        parts = dotted.split(".")
        for cut in range(len(parts), 0, -1):
            try:
                if ".training." in dotted:
                    pytest.importorskip("torch")
                module = importlib.import_module(".".join(parts[:cut]))
            except ModuleNotFoundError:
                continue
            found = reduce(getattr, parts[cut:], module)
            break
        assert callable(found), dotted
        assert inspect.getdoc(found)


def test_all_methods_have_different_digests():
    digests = [recipe().digest for recipe in METHODS.values()]
    assert len(set(digests)) == len(digests)


def test_a_digest_changes_with_every_part_of_a_method():
    base = METHODS["stc"]()
    others = [
        replace(base, local_steps=2),
        replace(base, momentum="mask"),
        replace(base, up=sgd().up),
        replace(base, down=sgd().down),
        replace(base, aggregate=Mean(weighted=True)),
        replace(base, name="other"),
        replace(base, version=2),
        METHODS["stc"](p_up=1 / 399),
        replace(base, server_optimizer=ServerMomentum()),
        replace(base, server_optimizer=ServerMomentum(nesterov=True)),
        replace(base, server_optimizer=ServerAdam()),
    ]
    digests = {method.digest for method in [base, *others]}
    assert len(digests) == 1 + len(others)


def test_numpy_and_python_numbers_give_equal_digests():
    assert METHODS["dgc"](warmup=np.int64(30)).digest == METHODS["dgc"]().digest


def test_parameters_of_equal_value_give_equal_methods():
    stc = METHODS["stc"]
    assert stc(p_up=1, local_steps=np.int64(3)) == stc(p_up=1.0, local_steps=3)
    assert METHODS["topk"](p_down=1).digest == METHODS["topk"](p_down=1.0).digest
    assert stc(np.float32(0.5)).digest == stc(0.5).digest


def test_parts_without_a_stable_id_are_refused_by_name():
    @dataclass(frozen=True)
    class Anonymous:
        def combine(self, updates, examples):
            return sgd().aggregate.combine(updates, examples)

    with pytest.raises(ValueError, match=r"Anonymous\(\) cannot be part of a method: .* part_id"):
        _ = replace(sgd(), aggregate=Anonymous()).digest


_RENAME_EVERY_CLASS = """
import gc
import sys

import fedtern
from fedtern.core.methods import METHODS

if sys.argv[1] == "rename":
    for number, found in enumerate([o for o in gc.get_objects() if isinstance(o, type)]):
        if found.__module__.startswith("fedtern."):
            found.__name__ = found.__qualname__ = f"Renamed{number}"
            found.__module__ = f"elsewhere{number}"
    for number, recipe in enumerate(METHODS.values()):
        recipe.__wrapped__.__name__ = f"renamed_{number}"
    assert "Renamed" in repr(METHODS["stc"]())
for name, recipe in METHODS.items():
    print(name, recipe().digest.hex(), recipe().spec.to_text())
"""


def test_digests_and_specs_do_not_depend_on_python_names():
    def run(mode: str) -> str:
        command = [sys.executable, "-c", _RENAME_EVERY_CLASS, mode]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    plain = run("plain")
    assert plain == run("rename")
    assert plain.count("\n") == len(METHODS)


def test_registering_an_existing_name_requires_replace():
    def like_sgd() -> Method:
        """Like uncompressed SGD."""
        return sgd()

    try:
        register_method("mine")(like_sgd)
        with pytest.raises(ValueError, match="Method 'mine' already exists"):
            register_method("mine")
        replaced = register_method("mine", version=2, replace=True)(like_sgd)
        assert METHODS["mine"] is replaced
        assert replaced().spec == MethodSpec("mine", 2)
        assert same(replaced().up, sgd().up)
    finally:
        METHODS.pop("mine", None)


def test_a_parameter_is_converted_before_the_method_is_made():
    stc = METHODS["stc"]
    assert stc(1).digest == stc(1.0).digest == stc(np.float64(1)).digest
    assert method_from_spec(stc(1).spec).digest == stc(1).digest


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"p_up": True}, "stc's p_up must be of type float, got True"),
        ({"p_up": "0.1"}, "stc's p_up must be of type float, got '0.1'"),
        ({"p_up": float("nan")}, "stc's p_up must be of type float, got nan"),
        ({"local_steps": 2.5}, "stc's local_steps must be of type int, got 2.5"),
        ({"local_steps": True}, "stc's local_steps must be of type int, got True"),
        ({"weighted": "no"}, "stc's weighted must be of type bool, got 'no'"),
        ({"scope": "layer"}, "stc's scope must be 'model' or 'tensor', got 'layer'"),
        ({"p_up": None}, "stc's p_up must be of type float, got None"),
    ],
)
def test_a_value_of_another_type_is_refused(parameters, message):
    with pytest.raises(ValueError, match=message):
        METHODS["stc"](**parameters)


def without_parameters() -> Method:
    return sgd()


def without_default(p: float) -> Method:
    return sgd()


def without_annotation(p=0.5) -> Method:
    return sgd()


def with_any_arguments(*values: float) -> Method:
    return sgd()


@pytest.mark.parametrize("make", [without_default, without_annotation, with_any_arguments])
def test_every_parameter_needs_a_default_and_a_type(make):
    with pytest.raises(ValueError, match="needs a default and a type annotation"):
        register_method("mine")(make)
    assert "mine" not in METHODS


@pytest.mark.parametrize("name", ["", "a:b", "Mine", "1st", "with space"])
def test_a_name_that_cannot_be_typed_is_refused(name):
    with pytest.raises(ValueError, match="name must consist of lower-case letters"):
        register_method(name)(without_parameters)


@pytest.mark.parametrize("version", [0, -1, True, 1.5, "1"])
def test_a_version_is_a_positive_whole_number(version):
    with pytest.raises(ValueError, match="must be a whole number from 1 on"):
        register_method("mine", version=version)(without_parameters)


def test_an_unknown_method_of_a_record_is_named():
    with pytest.raises(ValueError, match="Unknown method 'gone'"):
        make_method({"name": "gone"})
