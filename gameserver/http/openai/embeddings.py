"""`POST /v1/embeddings`."""

import asyncio
import base64

import numpy as np
import numpy.typing as npt
from starlette.responses import Response

from engine.errors import EngineError
from gameserver.http.openai.answers import Embedding, EmbeddingList, EmbeddingUsage
from gameserver.http.openai.call import Call
from gameserver.http.openai.errors import bad_field, from_engine
from gameserver.http.openai.prompts import encode_prompts
from gameserver.http.openai.schema import EmbeddingRequest

Vector = npt.NDArray[np.float32]


async def embeddings(call: Call, fields: EmbeddingRequest) -> Response:
    """One vector of length 1 for each text: the mean of its tokens' last hidden states.

    Raises:
        ApiError: what is wrong with the request, or that the engine cannot take it.
    """
    prompts = await encode_prompts(call, fields.input, "input")
    try:
        found = await call.engine.embed(prompts, shares=call.shares)
    except EngineError as error:
        raise from_engine(error, "input") from error
    except asyncio.CancelledError:  # the client is gone; how far its texts were read, nobody says
        call.pay(sum(map(len, prompts)))
        raise
    vectors = [one.vector for one in found]
    if fields.dimensions is not None:
        vectors = [_shortened(vector, fields.dimensions) for vector in vectors]
    plain = fields.encoding_format != "base64"
    tokens = sum(one.prompt_tokens for one in found)
    call.pay(tokens)
    return call.whole(
        EmbeddingList(
            data=[
                Embedding(index=n, embedding=vector.tolist() if plain else _base64(vector))
                for n, vector in enumerate(vectors)
            ],
            model=call.model,
            usage=EmbeddingUsage(prompt_tokens=tokens, total_tokens=tokens),
        )
    )


def _shortened(vector: Vector, dimensions: int) -> Vector:
    if dimensions > len(vector):
        raise bad_field("dimensions", f"dimensions may be at most {len(vector)} with this model")
    kept = vector[:dimensions]
    return (kept / max(float(np.linalg.norm(kept)), 1e-12)).astype(np.float32)


def _base64(vector: Vector) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()
