"""The API as a whole node serves it: on the console port, beside the game."""

from pathlib import Path

import httpx
import openai

from tests.gameserver.node import node_on_script, running


async def test_a_node_serves_the_api_beside_the_game(tmp_path: Path) -> None:
    async with running(node_on_script(tmp_path, ["The stew is hot."])) as node:
        url = f"http://127.0.0.1:{node.console_port}"
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any") as client:
            reply = await client.chat.completions.create(
                model="default", messages=[{"role": "user", "content": "What is there to eat?"}]
            )
        assert reply.choices[0].message.content == "The stew is hot."
        async with httpx.AsyncClient(base_url=url) as plain:
            metrics = (await plain.get("/metrics")).text
            assert (
                'troupe_http_requests_total{route="/chat/completions",status="2xx"} 1.0' in metrics
            )
            assert 'troupe_first_token_seconds_count{class="1"} 1.0' in metrics
            assert (await plain.get("/openapi.json")).json()["openapi"] == "3.1.0"
            foreign = await plain.get("/v1/models", headers={"host": "evil.example"})
            assert foreign.status_code == 400
