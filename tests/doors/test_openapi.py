"""The OpenAPI description: it is valid, it describes each route, and its examples are real answers."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from http_kit import BEARER, HttpApp
from openapi_schema_validator import OAS31Validator
from openapi_spec_validator import validate

from upriver.doors.http.endpoints import ENDPOINTS
from upriver.doors.http.examples import EXAMPLES, HttpExample


@pytest.fixture
def http() -> Iterator[httpx.Client]:
    app = HttpApp()
    with app.caller() as caller:
        yield caller
    app.stop()


@pytest.fixture
def description(http: httpx.Client) -> dict[str, Any]:
    told: dict[str, Any] = http.get("/v1/openapi.json").json()
    return told


def test_the_description_is_valid_and_has_every_operation_once(description: dict[str, Any]) -> None:
    validate(description)
    names = [operation["operationId"] for path in description["paths"].values() for operation in path.values()]
    assert sorted(names) == sorted(endpoint.name for endpoint in ENDPOINTS)
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_an_example_is_a_real_answer(http: httpx.Client, description: dict[str, Any], example: HttpExample) -> None:
    (operation,) = [
        operation
        for path in description["paths"].values()
        for operation in path.values()
        if operation["operationId"] == example.name
    ]
    (success,) = [answer for status, answer in operation["responses"].items() if status.startswith("2")]
    content = success["content"]["application/json"]
    assert example.answer in [shown["value"] for shown in content["examples"].values()]
    method, path = example.request.split(" ")
    answer = http.request(method, path, json=example.body, headers=BEARER).json()
    if answer.get("age_s") is not None:
        assert answer["age_s"] >= example.answer["age_s"]
        answer["age_s"] = example.answer["age_s"]
    assert answer == example.answer
    schema = {**content["schema"], "components": description["components"]}
    assert list(OAS31Validator(schema).iter_errors(answer)) == []
