"""Prompts without a dialogue: texts, or token ids."""

from collections.abc import Sequence
from typing import Any

from gameserver.http.openai.call import Call
from gameserver.http.openai.errors import bad_field


async def encode_prompts(call: Call, given: str | Sequence[Any], param: str) -> list[list[int]]:
    """Token ids of one prompt or several, given as text or as ids.

    Text is data: what looks like a control token in it is ordinary text. Ids are taken as they are.

    Args:
        param: the field they stand in.

    Raises:
        ApiError: 400, a prompt is empty, holds what is no token id, or kinds are mixed.
    """
    if isinstance(given, str) or all(isinstance(item, int) for item in given):
        given = [given]
    first = type(given[0])
    if first is int or any(type(item) is not first for item in given):
        raise bad_field(param, f"{param}: texts and token ids cannot be mixed")
    tokenizer = call.engine.tokenizer
    if first is not str:
        prompts = [list(ids) for ids in given]
    else:
        size = sum(map(len, given)) + len(given)
        prompts = await call.encode(size, lambda: [tokenizer.prompt(text) for text in given])
    for number, ids in enumerate(prompts):
        if not ids:
            raise bad_field(param, f"{param} {number} is empty")
        if not all(type(token) is int and 0 <= token < tokenizer.vocab_size for token in ids):
            raise bad_field(
                param, f"{param} {number} must hold token ids below {tokenizer.vocab_size}"
            )
    return prompts
