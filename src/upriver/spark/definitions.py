"""Whether two functions of a user's do the same, as far as their code tells.

A *definition* is a digest of a function's bytecode and constants, of its defaults and of what it closes over, and of
what it names of its own module: functions, classes, and the values of all other names. So is not its place in a file,
nor are its comments. Modules, and functions and classes of other modules, are told by their names alone.

Objects of classes of the function's own module, or of the program's, are told by their class and by what they hold:
cloudpickle gives such a class other bytes in each process.
"""

import dis
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from functools import partial
from types import CodeType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

import xxhash
from pyspark import cloudpickle

DEPTH_MAX = 20
"""Functions and objects within others that are followed."""


def definition_of(function: Callable[..., Any], version: object = None) -> str:
    """The definition of a function; of one with a ``version``, that alone."""
    if version is not None:
        parts = [f"version {version!r}"]
    else:
        parts = list(_Telling().of(function, getattr(function, "__module__", None)))
    return xxhash.xxh3_128_hexdigest("\n".join(parts).encode())


class _Telling:
    """What a definition is a digest of, in an order that is the same in each process."""

    def __init__(self) -> None:
        self._told: list[Any] = []
        """What may hold itself, and has been told or is being told. (Whether two equal tuples are one object differs
        from one process to the next.)"""

    def of(self, value: Any, module: str | None, depth: int = 0) -> Iterator[str]:
        """module: of the function around."""
        if isinstance(value, ModuleType):
            yield f"module {value.__name__}"
        elif isinstance(value, set | frozenset):
            yield type(value).__name__
            yield from sorted("\n".join(self.of(each, module, depth + 1)) for each in value)
        elif not _has_parts(value, module):
            yield f"{value.__module__}.{value.__qualname__}" if isinstance(value, type) else _pickled(value)
        elif (place := next((n for n, other in enumerate(self._told) if other is value), None)) is not None:
            yield f"part {place} again"
        elif depth > DEPTH_MAX:
            yield "deeper"
        else:
            if not isinstance(value, tuple | CodeType):
                self._told.append(value)
            yield f"{type(value).__qualname__} {getattr(value, '__qualname__', '')}"
            inner = value.__module__ if isinstance(value, FunctionType) else module
            for part in _held_by(value):
                yield from self.of(part, inner, depth + 1)


def _has_parts(value: Any, module: str | None) -> bool:
    if isinstance(value, FunctionType | MethodType | partial | CodeType | list | tuple | dict | property):
        return True
    if _is_wrapper(value):
        return True
    kind = value if isinstance(value, type) else type(value)
    return kind.__module__ in ("__main__", module)


def _is_wrapper(value: Any) -> bool:
    """Whether it stands for a function, as static methods and caches do."""
    return isinstance(getattr(value, "__wrapped__", None), FunctionType) and not isinstance(value, type)


def _held_by(value: Any) -> Iterator[Any]:
    match value:
        case CodeType():
            yield from (value.co_code, value.co_exceptiontable, value.co_flags)
            yield from (value.co_names, value.co_varnames, value.co_freevars, value.co_consts)
        case FunctionType():
            yield from (value.__code__, value.__defaults__, sorted((value.__kwdefaults__ or {}).items()))
            yield from (held for cell in value.__closure__ or () for held in _in_cell(cell))
            named = {name: value.__globals__[name] for name in _names_in(value.__code__) if name in value.__globals__}
            yield [(name, one) for name, one in named.items() if not _is_elsewhere(one, value.__module__)]
        case MethodType():
            yield from (value.__func__, value.__self__)
        case _ if _is_wrapper(value):
            yield value.__wrapped__
        case property():
            yield from (value.fget, value.fset)
        case partial():
            yield from (value.func, value.args, value.keywords)
        case list() | tuple():
            yield from value
        case dict():
            yield from value.items()
        case type() if issubclass(value, Enum):
            yield from value
        case Enum():
            yield from (value.name, value.value)
        case type():
            yield from value.__bases__
            yield _attributes(vars(value))
        case _:
            slots = {name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())}
            yield type(value)
            yield _attributes({name: getattr(value, name) for name in sorted(slots) if hasattr(value, name)})
            yield _attributes(getattr(value, "__dict__", {}))


def _attributes(names: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Of the names with two underscores, which Python and dataclasses add, the methods alone; no slots."""
    return [
        (name, value)
        for name, value in names.items()
        if (not (name.startswith("__") and name.endswith("__")) or isinstance(value, FunctionType))
        and not isinstance(value, MemberDescriptorType)
    ]


def _is_elsewhere(value: Any, module: str) -> bool:
    """Whether it is a module, or a function or class of another module than this: its name tells it."""
    if isinstance(value, ModuleType):
        return True
    return callable(value) and getattr(value, "__module__", None) != module


def _names_in(code: CodeType) -> Iterator[str]:
    """Global names that the code, or code within it, looks up."""
    yield from (str(step.argval) for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


def _in_cell(cell: Any) -> list[Any]:
    """Nothing, for a variable that is not set yet."""
    try:
        return [cell.cell_contents]
    except ValueError:
        return []


def _pickled(value: Any) -> str:
    """Any other value, by its pickled bytes; by its class, if it cannot be pickled."""
    dumps: Any = cloudpickle.dumps  # it has no types
    try:
        return f"{type(value).__name__} {xxhash.xxh3_128_hexdigest(dumps(value))}"
    except Exception:  # of any class: each object has its own error for pickling
        return f"{type(value).__qualname__}"
