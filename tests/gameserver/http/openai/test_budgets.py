"""The API is on the books too: requests and tokens, of each key and of all."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import msgspec
import openai
import pytest

from gameserver.budgets import Budgets
from gameserver.keys import Keys, key_line
from gameserver.settings import BudgetSettings
from gameserver.tally import Tally
from tests.gameserver.http.openai.served import Served, noise, serving

HELLO: Any = [{"role": "user", "content": "Hello!"}]


def budgets(**accounts: Any) -> Budgets:
    return Budgets(msgspec.convert(accounts, BudgetSettings), Tally())


async def ask(served: Served, key: str = "none", **more: Any) -> Any:
    async with served.client(api_key=key) as client:
        return await client.chat.completions.create(model="default", messages=HELLO, **more)


async def test_tokens_of_every_choice_are_booked_once() -> None:
    kept = budgets()
    async with serving(["Fine."], budgets=kept) as served:
        reply = await ask(served, n=2)
        await served.at_rest()
    used, spent = reply.usage, kept.of_all().tokens
    # The second choice reads what the first has read, but for a block that is not full.
    assert used.total_tokens <= spent <= used.total_tokens + used.prompt_tokens


@pytest.mark.parametrize("path", ["completions", "chat/completions", "embeddings"])
async def test_a_request_over_a_budget_is_429_with_a_time_to_come_again(path: str) -> None:
    kept = budgets(caller={"turns_per_minute": 1})
    body: dict[str, Any] = {"prompt": "Hello!", "max_tokens": 4}
    if path == "embeddings":
        body = {"input": "Hello!"}
    elif path == "chat/completions":
        body = {"messages": HELLO, "max_tokens": 4}
    async with serving(noise(), budgets=kept) as served, httpx.AsyncClient() as http:
        url = f"{served.url}/v1/{path}"
        ask = {"model": "default", **body}
        assert (await http.post(url, json=ask)).status_code == 200
        reply = await http.post(url, json=ask)
        assert reply.status_code == 429
        assert reply.json()["error"]["code"] == "over_budget"
        assert 0 < int(reply.headers["retry-after"]) <= 60
        assert (await http.post(url, json={"model": 7})).status_code == 400
    assert kept.of_all().tokens > 0


async def test_each_key_has_its_own_account_and_all_have_one_together(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    names = ("one", "two", "three")
    file.write_text("\n".join(key_line(name, f"tr-{name}") for name in names))
    keys = Keys.load(str(file), None)
    kept = budgets(caller={"tokens_per_day": 1}, total={"turns_per_minute": 2})
    async with serving(["Fine."], keys=keys, budgets=kept) as served:
        await ask(served, "tr-one")
        await served.at_rest()
        with pytest.raises(openai.RateLimitError, match="this key"):
            await ask(served, "tr-one")
        await ask(served, "tr-two")
        with pytest.raises(openai.RateLimitError, match="this server"):
            await ask(served, "tr-three")


async def test_what_nobody_waits_for_any_more_is_booked() -> None:
    kept = budgets()
    async with serving(["x" * 400], step_ms=5, budgets=kept) as served:
        async with served.client() as client:
            stream = await client.chat.completions.create(
                model="default", messages=HELLO, max_tokens=400, stream=True
            )
            async for _ in stream:
                break
            await stream.close()
        await served.at_rest()
        async with asyncio.timeout(20):
            while not kept.of_all().tokens:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert kept.of_all().tokens < 400
