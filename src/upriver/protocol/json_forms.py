"""Records as JSON, and back: the types of the fields decide how each is written and read.

Nothing is unpickled: the worst that a file or a peer can give is a value that is refused.
"""

import dataclasses
import types
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

import pyarrow as pa

from upriver.plan.schemas import schema_from_json, schema_to_json
from upriver.vnodes import VnodeMap

Form = tuple[Callable[[Any], Any], Callable[[Any], Any]]
"""How a value of some type becomes JSON, and how it is read back."""

_PLAIN_FORMS: Mapping[Any, Form] = {
    pa.Schema: (schema_to_json, schema_from_json),
    pa.DataType: (
        lambda type: schema_to_json(pa.schema([("", type)])),
        lambda text: schema_from_json(text).field(0).type,
    ),
    bytes: (lambda value: b64encode(value).decode("ascii"), lambda text: b64decode(text, validate=True)),
}


@cache
def _form(kind: Any) -> Form:
    """The form of a field's type."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is VnodeMap:
        return VnodeMap.to_json, VnodeMap.from_json
    if kind in _PLAIN_FORMS:
        return _PLAIN_FORMS[kind]
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return str, kind
    if hasattr(kind, "__supertype__"):
        return _form(kind.__supertype__)
    if kind in (int, str, float, bool):
        return _same, _checked(kind)
    if hasattr(kind, "__dataclass_fields__"):
        return record_form(kind)
    if origin in (Union, types.UnionType):
        return _union(arguments)
    if origin is tuple and arguments[-1] is Ellipsis:
        return _sequence(_form(arguments[0]))
    if origin is tuple:
        return _row([_form(argument) for argument in arguments])
    if issubclass(origin, Mapping):
        return _mapping(arguments[0], _form(arguments[1]))
    raise TypeError(f"no form for {kind}")


@cache
def record_form(kind: Any) -> Form:
    """How a dataclass becomes a JSON object of its fields, and is read back."""
    hints = get_type_hints(kind)
    forms = {field.name: _form(hints[field.name]) for field in dataclasses.fields(kind)}

    def to_json(value: Any) -> dict[str, Any]:
        return {name: form[0](getattr(value, name)) for name, form in forms.items()}

    def from_json(json: Mapping[str, Any]) -> Any:
        return kind(**{name: form[1](json[name]) for name, form in forms.items()})

    return to_json, from_json


def _union(kinds: tuple[Any, ...]) -> Form:
    """Either of two records, told apart by name; or a value and ``None``."""
    if type(None) in kinds:
        (kind,) = (kind for kind in kinds if kind is not type(None))
        to_json, from_json = _form(kind)
        return (
            lambda value: None if value is None else to_json(value),
            lambda json: None if json is None else from_json(json),
        )
    forms = {kind.__name__: record_form(kind) for kind in kinds}
    return (
        lambda value: [type(value).__name__, forms[type(value).__name__][0](value)],
        lambda json: forms[json[0]][1](json[1]),
    )


def _sequence(form: Form) -> Form:
    return lambda values: [form[0](value) for value in values], lambda json: tuple(form[1](item) for item in json)


def _row(forms: list[Form]) -> Form:
    return (
        lambda values: [form[0](value) for form, value in zip(forms, values, strict=True)],
        lambda json: tuple(form[1](item) for form, item in zip(forms, json, strict=True)),
    )


def _mapping(key: Any, form: Form) -> Form:
    """JSON has only strings as keys: a worker's number and a view's name become strings."""
    read_key: Callable[[str], Any] = str if _plain(key) is str else int
    return (
        lambda value: {str(name): form[0](item) for name, item in value.items()},
        lambda json: {read_key(name): form[1](item) for name, item in json.items()},
    )


def _plain(kind: Any) -> Any:
    return _plain(kind.__supertype__) if hasattr(kind, "__supertype__") else kind


def _same(value: Any) -> Any:
    return value


def _checked(kind: type) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if not isinstance(value, kind) and not (kind is float and isinstance(value, int)):
            raise TypeError(f"{value!r} where {kind.__name__} belongs")
        return value

    return check
