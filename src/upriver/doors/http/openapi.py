"""The OpenAPI 3.1 description of the door, made from the table of endpoints."""

from collections.abc import Sequence
from typing import Any

from upriver.doors.http.examples import EXAMPLES
from upriver.doors.http.messages import JSON_TYPE, Endpoint, Json
from upriver.doors.http.problems import PROBLEM_TYPE

_TEXT: Json = {"type": "string"}
_NAMES: Json = {"type": "array", "items": _TEXT}
_MAYBE: Json = {"type": ["number", "null"]}
_ROWS: Json = {
    "type": "object",
    "required": ["view", "rows", "epoch", "committed_at", "age_s", "sources"],
    "properties": {
        "view": _TEXT,
        "rows": {"type": "array", "items": {"type": "object"}},
        "epoch": {"type": "integer", "description": "That all rows reflect to its end; 0 for no keys."},
        "committed_at": {"type": ["string", "null"], "format": "date-time"},
        "age_s": {**_MAYBE, "description": "Seconds that the rows are old at most."},
        "sources": {"type": ["string", "null"], "description": "The state of the view's sources."},
    },
}
_VIEW: Json = {
    "type": "object",
    "required": ["view", "key", "columns", "tables", "sql", "is_partial", "explain"],
    "properties": {
        "view": _TEXT,
        "key": _NAMES,
        "columns": {
            "type": "array",
            "items": {"type": "object", "required": ["name", "type"], "properties": {"name": _TEXT, "type": _TEXT}},
        },
        "tables": _NAMES,
        "sql": _TEXT,
        "is_partial": {"type": "boolean"},
        "explain": _TEXT,
    },
}
_PROGRESS: Json = {
    "type": "object",
    "required": ["ticket", "state"],
    "properties": {
        "ticket": {"type": "integer"},
        "state": {
            "type": "string",
            "enum": ["queued", "starting", "moving", "finished", "aborted", "refused", "failed"],
        },
        "strategy": _TEXT,
        "from": {"type": ["integer", "null"]},
        "to": {"type": ["integer", "null"]},
        "vnodes_moving": {"type": "integer"},
        "vnodes_moved": {"type": "integer"},
        "keys_moved": {"type": "integer"},
        "keys_left": {"type": "integer"},
        "bytes_moved": {"type": "integer"},
        "bytes_left": {"type": "integer"},
        "seconds": {"type": "number"},
        "seconds_left": _MAYBE,
        "waits_for": {"type": ["string", "null"]},
        "workers": {"type": "array", "items": {"type": "object"}},
        "error": {"type": ["string", "null"]},
    },
}
SCHEMAS: Json = {
    "Problem": {
        "type": "object",
        "description": "An error, as RFC 9457 has it. title: its kind.",
        "required": ["type", "title", "status", "detail"],
        "properties": {"type": _TEXT, "title": _TEXT, "status": {"type": "integer"}, "detail": _TEXT},
    },
    "Session": {
        "type": "object",
        "required": ["role"],
        "properties": {"role": {"type": "string", "enum": ["reader", "operator"]}},
    },
    "Status": {"type": "object", "required": ["epoch"], "properties": {"epoch": {"type": "integer"}}},
    "River": {
        "type": "object",
        "required": ["at", "epoch", "published", "summary", "troubles", "tables", "views", "workers", "vnodes"],
        "properties": {
            "at": {"type": "number", "description": "When the picture was made, in seconds since 1970."},
            "summary": {"type": "object", "required": ["level", "text"]},
            "troubles": {"type": "array", "items": {"type": "object", "required": ["level", "what"]}},
        },
    },
    "Views": {
        "type": "object",
        "required": ["views"],
        "properties": {
            "views": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["view", "key", "tables"],
                    "properties": {"view": _TEXT, "key": _NAMES, "tables": _NAMES},
                },
            }
        },
    },
    "View": _VIEW,
    "Rows": _ROWS,
    "ViewOrRows": {"oneOf": [{"$ref": "#/components/schemas/View"}, {"$ref": "#/components/schemas/Rows"}]},
    "Progress": _PROGRESS,
    "Rescales": {
        "type": "object",
        "required": ["rescales"],
        "properties": {"rescales": {"type": "array", "items": {"type": "object"}}},
    },
    "Evicted": {
        "type": "object",
        "required": ["view", "evicted"],
        "properties": {"view": _TEXT, "evicted": {"type": ["integer", "string"]}},
    },
}


def described(endpoints: Sequence[Endpoint]) -> Json:
    """The description of these endpoints."""
    paths: Json = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Upriver",
            "version": "1",
            "summary": "Views of a running app: lookups, changes, status, rescales",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": SCHEMAS,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "description": "app.token"}},
            "responses": {
                "Problem": {
                    "description": "An error",
                    "content": {PROBLEM_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
                }
            },
        },
    }


def _operation(endpoint: Endpoint) -> Json:
    found: Json = {
        "operationId": endpoint.name,
        "summary": endpoint.summary,
        "description": f"{endpoint.description} Needs the role {endpoint.role.name.lower()}.".strip(),
        "responses": {
            str(endpoint.status): {"description": endpoint.summary, "content": _content(endpoint)},
            "default": {"$ref": "#/components/responses/Problem"},
        },
    }
    parameters = [*_path_parameters(endpoint), *map(_parameter, endpoint.parameters)]
    if parameters:
        found["parameters"] = parameters
    if endpoint.body is not None:
        bodies = [one.body for one in EXAMPLES if one.name == endpoint.name and one.body is not None]
        content = {"schema": endpoint.body} | ({"example": bodies[0]} if bodies else {})
        found["requestBody"] = {"required": endpoint.name == "lookUp", "content": {JSON_TYPE: content}}
    return found


def _content(endpoint: Endpoint) -> Json:
    found: Json = {
        kind: {} if schema is None else {"schema": {"$ref": f"#/components/schemas/{schema}"}}
        for kind, schema in endpoint.gives.items()
    }
    examples = [one for one in EXAMPLES if one.name == endpoint.name]
    if examples:
        found[JSON_TYPE]["examples"] = {
            f"{endpoint.name}{number or ''}": {"summary": one.request, "value": one.answer}
            for number, one in enumerate(examples)
        }
    return found


def _path_parameters(endpoint: Endpoint) -> list[Json]:
    if "{view}" not in endpoint.path:
        return []
    return [{"name": "view", "in": "path", "required": True, "schema": _TEXT, "description": "The view's name."}]


def _parameter(parameter: Any) -> Json:
    found = {
        "name": parameter.name,
        "in": "query",
        "description": parameter.description,
        "schema": parameter.schema,
    }
    return found | ({"style": "form", "explode": True} if parameter.many else {})
