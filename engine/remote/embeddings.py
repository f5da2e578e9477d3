"""Vectors of texts from a server's /v1/embeddings."""

import asyncio
import logging
import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from engine.errors import RemoteFailed, RemoteUnavailable
from engine.remote.client import Client, Trouble
from engine.remote.desk import SAYS
from engine.remote.servers import Servers

Vectors = npt.NDArray[np.float32]

_log = logging.getLogger("troupe.engine.remote")
#: Of the answer to one text: vectors have up to 8192 figures.
_VECTOR_BYTES, _MOST_BYTES = 1 << 18, 32 << 20


async def embed(
    client: Client, servers: Servers, model: str, texts: Sequence[str], patience_s: float
) -> Vectors:
    """A vector for each text: float32 [len(texts), dim].

    Raises:
        RemoteUnavailable: no server answers in time.
        RemoteFailed: one answers something else.
    """
    now = time.monotonic()
    server = servers.choose(now)
    if server is None:
        raise servers.unavailable(now)
    body = {"model": model, "input": list(texts), "encoding_format": "float"}
    try:
        async with asyncio.timeout(patience_s):
            most = min(_VECTOR_BYTES * len(texts), _MOST_BYTES)
            answer = await client.ask("POST", server.base, "embeddings", body, most)
    except Trouble as trouble:
        _log.warning("no embeddings from %s: %s", server.base, trouble.brief)
        says = SAYS[trouble.kind]
        raise (RemoteUnavailable(says) if trouble.again else RemoteFailed(says)) from trouble
    except TimeoutError:
        raise RemoteUnavailable(SAYS["slow"]) from None
    return read_vectors(answer, len(texts))


def read_vectors(answer: object, count: int) -> Vectors:
    """The vectors of an answer, in the order of its texts; raises `RemoteFailed` for anything else
    than so many finite ones of one length.
    """
    try:
        items = sorted(answer["data"], key=lambda item: item["index"])  # type: ignore[index]
        vectors = np.array([item["embedding"] for item in items], np.float32)
    except (LookupError, TypeError, ValueError) as error:
        raise RemoteFailed(SAYS["nonsense"]) from error
    if vectors.ndim != 2 or len(vectors) != count or not np.isfinite(vectors).all():
        raise RemoteFailed(SAYS["nonsense"])
    return vectors
