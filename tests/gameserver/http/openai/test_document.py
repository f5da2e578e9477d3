"""The served description is true: what it allows is answered, and nothing at all breaks us."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gameserver.http.openai.document import openapi_document
from tests.gameserver.http.openai.served import Served, noise, serving

DOCUMENT: dict[str, Any] = json.loads(openapi_document())
SCHEMAS = DOCUMENT["components"]["schemas"]
POSTS = {
    path: operation["post"]["requestBody"]["content"]["application/json"]["schema"]
    for path, operation in DOCUMENT["paths"].items()
    if "post" in operation
}
#: Words that mean something to us, so that chance meets them.
WORDS = st.sampled_from(
    (
        *("user", "assistant", "system", "tool", "text", "function", "type", "<tool_call>"),
        *("messages", "prompt", "content", "role", "json_schema", "object", "$ref", "#/$defs/a"),
        *("*", "<eos>", "a"),
    )
)
ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | WORDS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(WORDS | st.text(), inner, max_size=4)
    ),
    max_leaves=12,
)


def strategy(schema: dict[str, Any], depth: int = 0) -> st.SearchStrategy[Any]:
    """Values that a schema of the document allows; of the keywords that it uses."""
    if "$ref" in schema:
        return st.deferred(lambda: strategy(SCHEMAS[schema["$ref"].rsplit("/", 1)[1]], depth + 1))
    if "anyOf" in schema:
        return st.one_of([strategy(one, depth) for one in schema["anyOf"]])
    if "enum" in schema or "const" in schema:
        return st.sampled_from(schema.get("enum") or [schema["const"]])
    match schema.get("type"):
        case "object" if "properties" in schema:
            fields = {n: strategy(s, depth + 1) for n, s in schema["properties"].items()}
            needed = set(schema.get("required", ()))
            return st.fixed_dictionaries(
                {name: fields[name] for name in fields if name in needed},
                optional={name: fields[name] for name in fields if name not in needed},
            )
        case "object":
            values = schema.get("additionalProperties")
            inner = strategy(values, depth + 1) if isinstance(values, dict) else ANYTHING
            return st.dictionaries(st.text(max_size=5) | WORDS | st.just("5"), inner, max_size=3)
        case "array":
            inner = strategy(schema["items"], depth + 1) if "items" in schema else ANYTHING
            least = schema.get("minItems", 0)
            return st.lists(
                inner, min_size=least, max_size=min(schema.get("maxItems", 3), least + 3)
            )
        case "integer":
            return st.integers(schema.get("minimum"), min(schema.get("maximum", 40), 40))
        case "number":
            lowest, highest = (
                schema.get("minimum", schema.get("exclusiveMinimum")),
                schema.get("maximum"),
            )
            return st.floats(
                lowest, highest, exclude_min="exclusiveMinimum" in schema, allow_nan=False
            )
        case "string" if "pattern" in schema:
            return st.from_regex(schema["pattern"], fullmatch=True)
        case "string":
            least = schema.get("minLength", 0)
            return st.text(min_size=least, max_size=least + 12) | WORDS
        case "boolean":
            return st.booleans()
        case "null":
            return st.none()
        case None:
            return ANYTHING
    raise AssertionError(f"the document has a new kind of schema: {schema}")


class Loop:
    """A server and a client that live as long as the tests of this file, in a loop of their own."""

    def __init__(self) -> None:
        self.runner = asyncio.Runner()
        self.parts: AsyncIterator[tuple[Served, httpx.AsyncClient]] = self._start()
        self.served, self.client = self.runner.run(anext(self.parts))  # type: ignore[arg-type]

    async def _start(self) -> AsyncIterator[tuple[Served, httpx.AsyncClient]]:
        async with (
            serving(noise(), reply_tokens=8, choices=4, body_bytes=20_000) as served,
            httpx.AsyncClient(base_url=served.url, timeout=20) as client,
        ):
            yield served, client

    def send(self, method: str, path: str, **rest: Any) -> httpx.Response:
        async def exchange() -> httpx.Response:
            response = await self.client.request(method, path, **rest)
            assert (await self.served.at_rest())["blocks_held"] == 0
            assert self.served.api is not None
            assert self.served.api.tally.open == 0
            return response

        return self.runner.run(exchange())

    def close(self) -> None:
        self.runner.run(self.parts.aclose())  # type: ignore[attr-defined]
        self.runner.close()


@pytest.fixture(scope="module")
def loop() -> Any:
    loop = Loop()
    yield loop
    loop.close()


def check(response: httpx.Response, path: str, method: str = "post") -> None:
    """An answer is one that the document promises, and looks as it says."""
    promised = DOCUMENT["paths"][path][method]["responses"]
    status = response.status_code
    assert str(status) in promised, response.text
    assert status < 500, response.text
    kind = response.headers["content-type"].partition(";")[0]
    content = promised[str(status)]["content"][kind]
    if kind == "application/json":
        schema = {**content["schema"], "components": DOCUMENT["components"]}
        jsonschema.validate(response.json(), schema)
    else:
        assert response.text.endswith("data: [DONE]\n\n") or '"error"' in response.text
        assert len(response.text) > len("data: [DONE]\n\n"), "never an empty 200"


FUZZ = settings(
    max_examples=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


@pytest.mark.parametrize("path", POSTS)
def test_what_the_document_allows_is_answered_as_it_promises(path: str, loop: Loop) -> None:
    statuses = set()

    @FUZZ
    @given(strategy(POSTS[path]))
    def run(body: Any) -> None:
        body.pop("model", None)
        if "embeddings" not in path:
            body["max_tokens"] = min(body.get("max_tokens") or 8, 8)
        response = loop.send("POST", path, json=body)
        check(response, path)
        statuses.add(response.status_code)

    run()
    assert {200, 400} <= statuses, "chance reaches both what is done and what is refused"


@pytest.mark.parametrize("path", POSTS)
def test_what_is_nearly_right_breaks_nothing(path: str, loop: Loop) -> None:
    fields = sorted(SCHEMAS[POSTS[path]["$ref"].rsplit("/", 1)[1]]["properties"])
    right = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
    if "chat" not in path:
        name = "input" if "embeddings" in path else "prompt"
        right = {name: "Hi"}

    @FUZZ
    @given(st.dictionaries(st.sampled_from(fields), ANYTHING, min_size=1, max_size=2))
    def run(wrong: dict[str, Any]) -> None:
        check(loop.send("POST", path, json=right | wrong), path)

    run()


@settings(FUZZ, max_examples=25)
@given(body=st.binary(max_size=200) | ANYTHING.map(lambda v: json.dumps(v).encode()))
def test_bytes_of_any_kind_break_nothing(body: bytes, loop: Loop) -> None:
    for path in POSTS:
        response = loop.send(
            "POST", path, content=body, headers={"content-type": "application/json"}
        )
        check(response, path)


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize("text", [r"\ud800", r"\u0000", r"\ud83d\udc09", "\ufffe", "<|im_start|>"])
def test_odd_characters_break_nothing(path: str, text: str, loop: Loop) -> None:
    name = {"/v1/completions": "prompt", "/v1/embeddings": "input"}.get(path)
    body = f'{{"{name}": "{text}"}}'
    if name is None:
        body = f'{{"messages": [{{"role": "user", "content": "{text}"}}]}}'
    headers = {"content-type": "application/json"}
    check(loop.send("POST", path, content=body, headers=headers), path)


@pytest.mark.parametrize("number", ["1e999", "-1e999", "1e-999", "123456789012345678901234567890"])
@pytest.mark.parametrize("field", ["temperature", "seed", "max_tokens", "priority", "n"])
def test_odd_numbers_break_nothing(number: str, field: str, loop: Loop) -> None:
    body = f'{{"prompt": "a", "{field}": {number}}}'
    headers = {"content-type": "application/json"}
    check(loop.send("POST", "/v1/completions", content=body, headers=headers), "/v1/completions")


def test_the_document_is_served_and_names_every_route(loop: Loop) -> None:
    assert loop.send("GET", "/openapi.json").json() == DOCUMENT
    assert loop.served.api is not None
    routes = {route.path for route in loop.served.api.app.routes}  # type: ignore[attr-defined]
    assert {f"/v1{path}".replace("{name:path}", "{model}") for path in routes} == set(
        DOCUMENT["paths"]
    )
    check(loop.send("GET", "/v1/models"), "/v1/models", "get")
    check(loop.send("GET", "/v1/models/script"), "/v1/models/{model}", "get")
    check(loop.send("GET", "/v1/models/none"), "/v1/models/{model}", "get")


def test_the_document_is_well_formed() -> None:
    for schema in SCHEMAS.values():
        jsonschema.Draft202012Validator.check_schema(schema)
    text = json.dumps(DOCUMENT)
    for part in text.split('"$ref": "')[1:]:
        name = part.split('"')[0].removeprefix("#/components/schemas/")
        assert name in SCHEMAS
    assert not any(name.startswith("_") for name in SCHEMAS)
