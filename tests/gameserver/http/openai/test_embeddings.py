"""Vectors through the official client."""

from typing import Any

import numpy as np
import openai
import pytest

from tests.engine.speech import byte_tokenizer
from tests.gameserver.http.openai.served import noise, serving


async def test_texts_ids_and_both_encodings_give_the_same_vectors() -> None:
    async with serving(noise()) as served, served.client() as client:
        create = client.embeddings.create
        texts = ["The bell", "An eel and a bell"]
        usual = await create(model="script", input=texts)  # the client asks for base64
        plain = await create(model="script", input=texts, encoding_format="float")
        ids = await create(model="script", input=[byte_tokenizer().encode(t) for t in texts])
        assert [item.index for item in usual.data] == [0, 1]
        for other in (plain, ids):
            for a, b in zip(usual.data, other.data, strict=True):
                np.testing.assert_allclose(a.embedding, b.embedding, atol=1e-7)
        assert np.linalg.norm(usual.data[0].embedding) == pytest.approx(1)
        assert usual.data[0].embedding != usual.data[1].embedding
        tokens = sum(len(byte_tokenizer().encode(text)) for text in texts)
        assert (usual.usage.prompt_tokens, usual.usage.total_tokens) == (tokens, tokens)
        short = await create(model="script", input="The bell", dimensions=2)
        assert len(short.data[0].embedding) == 2
        assert np.linalg.norm(short.data[0].embedding) == pytest.approx(1)


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("input", {"input": ""}),
        ("input", {"input": []}),
        ("input", {"input": ["a", [1]]}),
        ("input", {"input": [999_999]}),
        ("input", {"input": "x" * 9000}),
        ("dimensions", {"input": "a", "dimensions": 9}),
        ("encoding_format", {"input": "a", "encoding_format": "hex"}),
    ],
)
async def test_what_cannot_be_read_is_refused_by_name(param: str, fields: dict[str, Any]) -> None:
    async with serving(noise()) as served, served.client() as client:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.embeddings.create(model="script", **fields)
        assert caught.value.param == param


async def test_a_script_has_no_vectors_and_survives_being_asked() -> None:
    async with serving(["Fine."]) as served, served.client() as client:
        with pytest.raises(openai.BadRequestError, match="script"):
            await client.embeddings.create(model="script", input="a")
        reply = await client.completions.create(model="script", prompt="a")
        assert reply.choices[0].text == "Fine."
