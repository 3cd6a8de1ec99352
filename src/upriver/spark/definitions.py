"""Whether two functions of a user's do the same, as far as their code tells.

A *definition* is a digest of a function's bytecode and constants, of its defaults and of what it closes over, and of
the functions and classes of the same module that it names: not of its place in a file, nor of its comments. What it
takes of other modules, and other names of its own module, are told by their names alone.
"""

from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any

import xxhash
from pyspark import cloudpickle

DEPTH_MAX = 20
"""Functions within functions that are followed."""


def definition_of(function: Callable[..., Any], version: object = None) -> str:
    """The definition of a function; of one with a ``version``, that alone."""
    parts = [f"version {version!r}"] if version is not None else list(_parts(function, [], 0))
    return xxhash.xxh3_128_hexdigest("\n".join(parts).encode())


def _parts(value: Any, seen: list[Any], depth: int) -> Iterator[str]:
    if any(value is other for other in seen) or depth > DEPTH_MAX:
        yield "again"
        return
    seen.append(value)
    if isinstance(value, FunctionType):
        yield "function"
        yield from _code_parts(value.__code__)
        for default in (value.__defaults__ or (), sorted((value.__kwdefaults__ or {}).items())):
            yield from _parts_of_all(default, seen, depth)
        yield from _parts_of_all(filter(None, map(_held, value.__closure__ or ())), seen, depth)
        named = (value.__globals__.get(name) for name in _names_in(value.__code__))
        own = [one for one in named if getattr(one, "__module__", None) == value.__module__ and callable(one)]
        yield from _parts_of_all(own, seen, depth)
    elif isinstance(value, type):
        yield f"class {value.__qualname__}"
        yield from _parts_of_all([one for one in vars(value).values() if isinstance(one, FunctionType)], seen, depth)
    elif isinstance(value, list | tuple | dict):
        yield type(value).__name__
        yield from _parts_of_all(value.items() if isinstance(value, dict) else value, seen, depth)
    elif isinstance(value, set | frozenset):
        yield f"{type(value).__name__} {sorted(map(repr, value))}"
    else:
        yield _told(value)


def _parts_of_all(values: Any, seen: list[Any], depth: int) -> Iterator[str]:
    for value in values:
        yield from _parts(value, seen, depth + 1)


def _code_parts(code: CodeType) -> Iterator[str]:
    yield from (code.co_code.hex(), repr((code.co_names, code.co_varnames, code.co_freevars, code.co_flags)))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code_parts(constant)
        elif isinstance(constant, frozenset):
            yield repr(sorted(map(repr, constant)))
        else:
            yield f"{type(constant).__name__} {constant!r}"


def _names_in(code: CodeType) -> Iterator[str]:
    """Names that the code, or code within it, looks up."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


def _held(cell: Any) -> list[Any]:
    """What a cell holds: nothing, for a variable that is not set yet."""
    try:
        return [cell.cell_contents]
    except ValueError:
        return []


def _told(value: Any) -> str:
    """Any other value, by its pickled bytes; by its class, if it cannot be pickled."""
    dumps: Any = cloudpickle.dumps  # it has no types
    try:
        return f"{type(value).__name__} {xxhash.xxh3_128_hexdigest(dumps(value))}"
    except Exception:  # of any class: each object has its own error for pickling
        return f"{type(value).__qualname__}"
