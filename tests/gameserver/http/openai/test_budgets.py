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
from gameserver.settings import BudgetSettings, TenantSettings
from gameserver.tally import Tally
from tests.gameserver.http.openai.served import Served, noise, serving

HELLO: Any = [{"role": "user", "content": "Hello!"}]


def budgets(**accounts: Any) -> Budgets:
    return Budgets(msgspec.convert(accounts, BudgetSettings), Tally())


async def ask(served: Served, key: str = "none", **more: Any) -> Any:
    async with served.client(api_key=key) as client:
        reply = await client.chat.completions.create(model="default", messages=HELLO, **more)
        return [piece async for piece in reply] if more.get("stream") else reply


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


TENANTS = {
    "acme": TenantSettings(scenes=("a",), turns_at_once=1, tokens_per_day=30_000),
    "bolt": TenantSettings(scenes=("b",)),
}


def tenant_keys(folder: Path) -> Keys:
    file = folder / "keys"
    lines = [key_line("one", f"tr-{tenant}", tenant=tenant) for tenant in TENANTS]
    file.write_text("\n".join(lines))
    return Keys.load(str(file), None, tenants=TENANTS)


@pytest.mark.parametrize("stream", [False, True])
async def test_requests_of_a_tenant_are_on_its_account(tmp_path: Path, stream: bool) -> None:
    kept = Budgets(BudgetSettings(), Tally(), tenants=TENANTS)
    keys = tenant_keys(tmp_path)
    async with serving(["x" * 300], step_ms=5, keys=keys, budgets=kept) as served:
        first = asyncio.create_task(ask(served, "tr-acme", max_tokens=300, stream=stream))
        async with asyncio.timeout(20):
            while not kept.of("acme").share.under_way:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        with pytest.raises(openai.RateLimitError, match="under way"):
            await ask(served, "tr-acme")
        await ask(served, "tr-bolt", max_tokens=2)
        await first
        await served.at_rest()
        async with asyncio.timeout(20):
            while kept.of("acme").share.under_way:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        kept.of("acme").spend_call("one", 30_000)
        with pytest.raises(openai.RateLimitError, match="this game"):
            await ask(served, "tr-acme")
        await ask(served, "tr-bolt", max_tokens=2)
        assert kept.of("bolt").share.under_way == 0


async def test_a_request_that_is_wrong_is_not_under_way(tmp_path: Path) -> None:
    kept = Budgets(BudgetSettings(), Tally(), tenants=TENANTS)
    async with serving(["Yes."], keys=tenant_keys(tmp_path), budgets=kept) as served:
        for _ in range(3):
            with pytest.raises(openai.BadRequestError):
                await ask(served, "tr-acme", n=1000)
        assert kept.of("acme").share.under_way == 0


async def test_what_one_tenant_has_had_computed_is_not_in_the_times_of_another(
    tmp_path: Path,
) -> None:
    """Their keys have one name, and their requests one `cache_salt`."""
    long: Any = [{"role": "user", "content": "All is well that ends well. " * 20}]
    async with serving(["Yes."], keys=tenant_keys(tmp_path)) as served:

        async def cached(key: str) -> int:
            async with served.client(api_key=key) as client:
                reply = await client.chat.completions.create(
                    model="default", messages=long, extra_body={"cache_salt": "s"}
                )
            await served.at_rest()
            assert reply.usage is not None and reply.usage.prompt_tokens_details is not None
            return reply.usage.prompt_tokens_details.cached_tokens or 0

        assert await cached("tr-acme") == 0
        assert await cached("tr-acme") > 0
        assert await cached("tr-bolt") == 0
