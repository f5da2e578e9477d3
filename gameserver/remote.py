"""A client of any server that speaks OpenAI's API: ours, or another's."""

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx2 as httpx

Fields = Mapping[str, Any]
_CONNECT_S = 5.0


class RemoteError(Exception):
    """A request was refused or broke off; the message is for people.

    Attributes:
        kind: "429" and the like for refusals, else the kind of failure in a word.
        retry_s: seconds after which the server wants to be asked again, if it said so.
    """

    def __init__(self, kind: str, message: str, retry_s: float | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.retry_s = retry_s


@dataclass(frozen=True, slots=True)
class Piece:
    """Something that came: text, or the counts that come last.

    Attributes:
        text: new text of the reply.
        usage: `prompt_tokens`, `completion_tokens` and perhaps more, where the server counts.
    """

    text: str
    usage: dict[str, Any] | None = None


class RemoteModel:
    """One model of a server.

    Args:
        url: of the server, with or without `/v1`.
        model: its name there; None takes the first that the server lists.
        key: API key, if the server wants one.
        connections: most requests at a time.
    """

    def __init__(
        self, url: str, model: str | None = None, key: str | None = None, connections: int = 8
    ) -> None:
        self._model = model
        self._url = url
        base = url.rstrip("/").removesuffix("/v1") + "/v1/"
        limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
        try:
            self._http = httpx.AsyncClient(
                base_url=base,
                headers={"authorization": f"Bearer {key}"} if key else {},
                # A server may let a request wait for its turn as long as it likes.
                timeout=httpx.Timeout(None, connect=_CONNECT_S),
                limits=limits,
            )
        except httpx.InvalidURL as error:
            raise RemoteError("address", f"{url} is no address: {error}") from None

    async def __aenter__(self) -> "RemoteModel":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def name(self) -> str:
        """The model's name at the server.

        Raises:
            RemoteError: the server does not answer, or lists nothing.
        """
        if self._model is None:
            listed = (await self._json("GET", "models")).get("data") or []
            if not listed:
                raise RemoteError("models", f"{self._url} lists no models")
            self._model = str(listed[0]["id"])
        return self._model

    async def embed(self, texts: list[str]) -> list[list[float]]:
        """One vector for each text. Raises `RemoteError`."""
        body = {"model": await self.name(), "input": texts, "encoding_format": "float"}
        answer = await self._json("POST", "embeddings", body)
        ordered = sorted(answer["data"], key=lambda item: item["index"])
        return [item["embedding"] for item in ordered]

    def chat(self, messages: list[dict[str, str]], fields: Fields) -> AsyncIterator[Piece]:
        """A reply to a dialogue as it comes. Raises `RemoteError`."""
        return self._stream("chat/completions", {"messages": messages, **fields})

    def complete(self, prompt: str | list[int], fields: Fields) -> AsyncIterator[Piece]:
        """What continues a prompt, as it comes. Raises `RemoteError`."""
        return self._stream("completions", {"prompt": prompt, **fields})

    async def _stream(self, path: str, fields: Fields) -> AsyncIterator[Piece]:
        body = {
            "model": await self.name(),
            "stream": True,
            "stream_options": {"include_usage": True},
            **fields,
        }
        finished = False
        try:
            async with self._http.stream("POST", path, json=body) as response:
                if response.status_code != 200:
                    await response.aread()
                    raise _refusal(response)
                async for line in response.aiter_lines():
                    if not line.startswith("data:"):
                        continue
                    data = line[5:].strip()
                    if data == "[DONE]":
                        finished = True
                        break
                    yield _piece(json.loads(data))
        except httpx.HTTPError as error:
            raise self._broken(error) from error
        except ValueError as error:
            raise RemoteError("nonsense", f"{self._url} sent what is no JSON: {error}") from error
        if not finished:
            raise RemoteError("cut", f"{self._url} broke off in the middle of the reply")

    async def _json(self, method: str, path: str, body: Fields | None = None) -> Any:
        try:
            response = await self._http.request(method, path, json=body)
            if response.status_code != 200:
                raise _refusal(response)
            return response.json()
        except httpx.HTTPError as error:
            raise self._broken(error) from error
        except ValueError as error:
            raise RemoteError("nonsense", f"{self._url} sent what is no JSON: {error}") from error

    def _broken(self, error: httpx.HTTPError) -> RemoteError:
        what = str(error) or type(error).__name__
        if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout)):
            return RemoteError("unreachable", f"nobody answers at {self._url} ({what})")
        if isinstance(error, httpx.UnsupportedProtocol):
            return RemoteError("address", f"{self._url} is no address: {what}")
        return RemoteError("cut", f"the connection to {self._url} broke: {what}")


def _piece(chunk: Any) -> Piece:
    if "error" in chunk:
        error = chunk["error"]
        message = error.get("message", error) if isinstance(error, dict) else error
        raise RemoteError("in the stream", str(message))
    text = ""
    for choice in chunk.get("choices") or ():
        text += choice.get("text") or (choice.get("delta") or {}).get("content") or ""
    return Piece(text, chunk.get("usage"))


def _refusal(response: httpx.Response) -> RemoteError:
    try:
        message = response.json()["error"]["message"]
    except (ValueError, LookupError, TypeError):
        said = response.text[:300].strip() or response.reason_phrase
        message = f"{response.url} does not speak this API: {said}"
    try:
        retry_s = float(response.headers["retry-after"])
    except (LookupError, ValueError):
        retry_s = None
    return RemoteError(str(response.status_code), str(message), retry_s)
