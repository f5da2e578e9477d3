"""Servers that lie: each lie is a typed error of the request it was told, within bounds of time and
memory, and of nobody else.
"""

import asyncio
import gzip
import json
import os
import socket
import ssl
import subprocess
import tracemalloc
from pathlib import Path

import pytest

from engine.errors import RemoteFailed, RemoteUnavailable
from engine.params import SamplingParams
from tests.engine.remote.server import Answer, Call, event, far_server, pausing, saying
from tests.engine.remote.stage import PATIENCE_S, Heard, remote
from tests.engine.remote.test_hostile import (
    SOON,
    breaking_off,
    flooding,
    never,
    sending,
    then_well,
)
from tests.gameserver.stage import until

OK = b"HTTP/1.1 200 OK\r\n"
STREAM = OK + b"content-type: text/event-stream\r\n"
END = b"data: [DONE]\n\n"


def raw(*parts: bytes, every_s: float = 0.0) -> Answer:
    """These bytes and nothing else, head and all, and then the end of the connection."""

    async def answer(call: Call) -> None:
        for part in parts:
            await call.send(part)
            await asyncio.sleep(every_s)

    return answer


def dripping(part: bytes, every_s: float = 0.01) -> Answer:
    """The same event again and again, slowly, for ever."""

    async def answer(call: Call) -> None:
        await call.begin()
        while not call.gone.is_set():
            await call.send(part)
            await asyncio.sleep(every_s)

    return answer


def chunk(**fields: object) -> bytes:
    """An event of a chat that is odd in these fields of its choice."""
    choice = {"index": 0, "delta": {"content": ""}, **fields}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


def whole(kind: str, body: bytes, status: str = "200 OK") -> Answer:
    """An answer in one piece, of a kind."""
    head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
    return raw(head.encode() + body)


def refusing(status: int, **headers: str) -> Answer:
    """A refusal with headers."""

    async def answer(call: Call) -> None:
        await call.answer(status, {"error": {"message": "no"}}, **headers)

    return answer


DEEP = b'{"error":' + b"[" * 900 + b"]" * 900 + b"}"
BOMB = gzip.compress(b"data: {}\n\n" * 1_000_000)
#: What a server may do instead of saying a first word, and what that is.
LIES: dict[str, tuple[Answer, str]] = {
    "an end that is a list": (breaking_off(chunk(finish_reason=["stop"])), "failed"),
    "an end that is an object": (breaking_off(chunk(finish_reason={"stop": 1})), "failed"),
    "an end that is a number": (breaking_off(chunk(finish_reason=7)), "failed"),
    "an error without bottom": (breaking_off(b"data: " + DEEP + b"\n\n"), "failed"),
    "an error in one piece": (whole("application/json", b'{"error":"no memory"}'), "failed"),
    "a deep error in one piece": (whole("application/json; charset=utf-8", DEEP), "failed"),
    "a reply in one piece": (
        whole("application/json", b'{"choices":[{"message":{"content":"Hi"}}]}'),
        "nonsense",
    ),
    "half of an answer in one piece": (whole("application/json", b'{"choices":[{'), "nonsense"),
    "a page": (whole("text/html", b"<html>Sign in</html>"), "cut"),
    "a page that is refused": (whole("text/html", b"<html>\xff</html>", "502 Bad"), "failed"),
    "what is compressed": (
        raw(STREAM + b"content-encoding: gzip\r\n\r\n" + BOMB),
        "cut",
    ),
    "less than was announced": (raw(STREAM + b"content-length: 999\r\n\r\n" + event("")), "cut"),
    "a length that is none": (raw(STREAM + b"content-length: -7\r\n\r\n" + event("")), "cut"),
    "a chunk that is none": (raw(STREAM + b"transfer-encoding: chunked\r\n\r\nmoss\r\n"), "cut"),
    "no HTTP": (raw(b"SSH-2.0-OpenSSH_9.6\r\n"), "cut"),
    "a head that is no text": (raw(OK + b"x-moss: \xff\xfe\x00\r\n\r\n"), "cut"),
    "nothing at all": (raw(), "cut"),
    "a head that drips": (raw(OK, *(b"x-moss: 1\r\n",) * 10_000, every_s=0.01), "slow"),
    "promises without end": (raw(*(b"HTTP/1.1 103 Soon\r\n\r\n",) * 10_000, every_s=0.01), "slow"),
    "silence that drips": (dripping(b": still here\n\n"), "slow"),
    "nothing that drips": (dripping(event("")), "slow"),
    "silence in a flood": (flooding(b": still here\n\n" * 1000), "nonsense"),
    "nothing in a flood": (flooding(event("") * 100), "nonsense"),
    "thoughts in a flood": (flooding(chunk(delta={"reasoning": "hm"}) * 100), "nonsense"),
    "a word of a megabyte": (breaking_off(event("x" * 1_000_000)), "nonsense"),
    "a nonsense wait": (refusing(429, retry_after="soon"), "busy"),
    "a wait that only looks like a number": (refusing(429, retry_after="²"), "busy"),
    "a wait in other digits": (refusing(503, retry_after="٣"), "busy"),
    "a wait below zero": (refusing(429, retry_after="-5"), "busy"),
    "a wait that is no number": (refusing(429, retry_after="nan"), "busy"),
    "a date": (refusing(429, retry_after="Wed, 21 Oct 2099 07:28:00 GMT"), "busy"),
}  # fmt: skip


@pytest.mark.parametrize(("answer", "kind"), LIES.values(), ids=LIES.keys())
async def test_each_lie_is_a_typed_error_that_players_are_told_as_busy(
    answer: Answer, kind: str
) -> None:
    patience = {"first_token_s": SOON} if kind == "slow" else {}
    heard, kinds = await then_well(answer, **patience, retry_after_most_s=SOON)
    last = heard.outputs[-1]
    assert (heard.text, last.finish, kinds) == ("", "failed", [kind])
    assert isinstance(last.refusal, RemoteUnavailable)
    assert last.refusal.retry_ms > 0


async def test_no_lie_harms_those_who_are_told_the_truth() -> None:
    lies = {f"lie {number}": answer for number, (answer, _) in enumerate(LIES.values())}
    go = asyncio.Event()
    truth = pausing(go)

    async def answer(call: Call) -> None:
        await lies.get(call.body["messages"][0]["content"], truth)(call)

    settings = {"failures": 999, "backoff_s": 0.001, "backoff_most_s": 0.001}
    async with (
        far_server(answer) as far,
        remote(
            far.url, first_token_s=2.0, next_token_s=60.0, retry_after_most_s=0.001, **settings
        ) as engine,
    ):
        good = [Heard(engine, f"truth {number}") for number in range(4)]
        for each in good:
            await each.until("Once")
        liars = [Heard(engine, said) for said in lies]
        for liar in liars:
            assert (await liar.last()).finish == "failed"
        go.set()
        assert [(await each.last()).finish for each in good] == ["stop"] * 4
        await until(lambda: engine.gauges()["running"] == 0)
    assert {each.text for each in good} == {"Once more."}


@pytest.mark.parametrize(
    "answer",
    [
        never,
        sending(),
        sending(event("Hel")),
        sending(event("Hel"), event("", "stop")),
        flooding(event("")),
        flooding(b": still here\n\n"),
        dripping(event("x")),
        raw(OK, *(b"x-moss: 1\r\n",) * 10_000, every_s=0.01),
    ],
)
async def test_a_cancel_frees_the_connection_whatever_is_being_sent(answer: Answer) -> None:
    async with far_server(answer) as far, remote(far.url, in_flight=1) as engine:
        heard = Heard(engine)
        await until(lambda: len(far.calls) == 1)
        engine.cancel(heard.ticket)
        assert (await heard.last()).finish == "cancelled"
        await asyncio.wait_for(far.calls[0].gone.wait(), PATIENCE_S)
        await until(lambda: engine.gauges()["running"] == 0)
        far.reply = saying("Well.")
        assert (await Heard(engine).last()).finish == "stop"


# A reply has an end, and takes no longer than it may


async def test_what_is_said_after_the_end_is_not_heard() -> None:
    parts = (event("Well."), event("", "stop"), event(" And"), event(" on.", "length"), END)
    async with far_server(breaking_off(*parts)) as far, remote(far.url) as engine:
        heard = Heard(engine)
        assert (await heard.last()).finish == "stop"
    assert heard.text == "Well."


async def test_words_after_the_end_keep_no_reply_open() -> None:
    async def answer(call: Call) -> None:
        await call.begin()
        await call.say("Well.")
        await call.send(event("", "stop"))
        while not call.gone.is_set():
            await call.say(" And")
            await asyncio.sleep(0.01)

    async with far_server(answer) as far, remote(far.url) as engine:
        heard = Heard(engine)
        assert (await heard.last()).finish == "stop"
        await asyncio.wait_for(far.calls[0].gone.wait(), PATIENCE_S)
    assert heard.text == "Well."


async def test_a_reply_that_is_whole_does_not_wait_long_for_its_bill() -> None:
    async with (
        far_server(sending(event("Well.", "stop"))) as far,
        remote(far.url, next_token_s=3600.0) as engine,
    ):
        assert (await Heard(engine).last()).finish == "stop"


@pytest.mark.parametrize("drop", ["x", "\ud83d", "\u200b"])
async def test_a_reply_that_drips_is_ended_by_its_pace(drop: str) -> None:
    answer = dripping(event(drop))
    heard, kinds = await then_well(answer, mean_token_s=0.01, next_token_s=SOON)
    assert heard.outputs[-1].finish == "failed"
    assert isinstance(heard.outputs[-1].refusal, RemoteFailed)
    assert kinds == ["slow"]


async def test_half_characters_in_a_flood_are_ended() -> None:
    heard, kinds = await then_well(flooding(event("\udc00") * 100))
    assert (heard.text, heard.outputs[-1].finish, kinds) == ("", "failed", ["nonsense"])


@pytest.mark.parametrize(
    "usage",
    [
        {"prompt_tokens": 10**400, "completion_tokens": 10**400},
        {"prompt_tokens": 10**18, "completion_tokens": 3},
        {"prompt_tokens": 9, "completion_tokens": 10**9},
        {"prompt_tokens": -9, "completion_tokens": 3},
        {"prompt_tokens": 9.5, "completion_tokens": "many"},
        {"prompt_tokens": True, "completion_tokens": None},
        ["moss"],
    ],
)
async def test_a_bill_that_cannot_be_is_none(usage: object) -> None:
    tail = b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n"
    parts = (event("abcdefgh"), event("", "stop"), tail, END)
    async with far_server(breaking_off(*parts)) as far, remote(far.url) as engine:
        heard = Heard(engine, params=SamplingParams(max_tokens=16))
        last = await heard.last()
        assert last.finish == "stop"
        assert last.usage is not None
        ours = (len(heard.ticket.prompt_ids), 2)
        assert (last.usage.prompt_tokens, last.usage.completion_tokens) == ours
        json.dumps(engine.gauges(), allow_nan=False)


# Nothing of a server is kept, followed or believed


async def test_nobody_is_sent_elsewhere() -> None:
    async with far_server(saying("I am elsewhere.")) as elsewhere:
        for status in (301, 302, 303, 307, 308):
            for place in (f"{elsewhere.url}/v1/chat/completions", "http://[", "//", "\xff", "x:y"):
                lie = whole("text/plain", b"", f"{status} Elsewhere\r\nlocation: {place}")
                heard, kinds = await then_well(lie)
                assert heard.outputs[-1].finish == "failed"
                assert kinds in (["refused"], ["cut"]), place
        assert elsewhere.calls == []


async def test_no_cookie_is_kept_or_sent_back() -> None:
    jar = "".join(f"\r\nset-cookie: c{n}={'x' * 900}; Max-Age=9999" for n in range(90))
    async with far_server(saying("Well.")) as far, remote(far.url) as engine:
        for _ in range(3):
            far.reply = whole("text/plain", b"", f"500 Cookies{jar}")
            await Heard(engine).last()
        far.reply = saying("Well.")
        await until(lambda: engine.gauges()["remote_servers_up"] == 1)
        assert (await Heard(engine).last()).finish == "stop"
        assert "cookie" not in far.calls[-1].headers


async def test_what_is_sent_without_end_takes_no_memory() -> None:
    async def answer(call: Call) -> None:
        await [
            flooding(b"data: " + b"x" * 65536),
            flooding(b"x" * 65536),
            flooding(b"x" * 65536, OK + b"x-moss: "),
            flooding(b"data: " + b"x" * 999 + b"\n"),
            whole("application/json", b"[" * (8 << 20)),
            whole("application/json", b"[" * (8 << 20), "500 Down"),
            raw(STREAM + b"content-encoding: gzip\r\n\r\n" + BOMB),
        ][len(far.calls) % 7](call)

    async with far_server(answer) as far, remote(far.url, failures=999) as engine:
        tracemalloc.start()
        try:
            for _ in range(7):
                assert (await Heard(engine).last()).finish == "failed"
            assert tracemalloc.get_traced_memory()[1] < 48 << 20
        finally:
            tracemalloc.stop()


# A server that dies and comes back


@pytest.mark.parametrize(
    "answer",
    [
        refusing(429, retry_after="²"),
        refusing(503, retry_after="9" * 4000),
        refusing(500),
        whole("text/html", b"<html>Starting</html>"),
        whole("application/json", b"[" * 100_000),
        whole("text/plain", b"", "302 Elsewhere\r\nlocation: http://["),
        raw(b"\x16\x03\x01\x02\x00\x01\x00"),
        raw(),
        never,
    ],
)
async def test_a_server_that_is_down_is_asked_until_it_answers_whatever_it_says(
    answer: Answer,
) -> None:
    asked = 0

    async def models(call: Call) -> None:
        nonlocal asked
        asked += 1
        await (answer if asked < 3 else saying("There."))(call)

    async with (
        far_server(raw()) as far,
        remote(far.url, failures=1, connect_s=SOON) as engine,
    ):
        far.models = models
        assert (await Heard(engine).last()).finish == "failed"
        far.reply = saying("Back.")
        await until(lambda: engine.gauges()["remote_servers_up"] == 1)
        heard = Heard(engine)
        assert (await heard.last()).finish == "stop"
    assert heard.text == "Back."


async def test_vectors_that_never_come_keep_nobody_from_speaking() -> None:
    async def answer(call: Call) -> None:
        await (never if call.path.endswith("embeddings") else saying("Well."))(call)

    async with (
        far_server(answer) as far,
        remote(far.url, in_flight=2, embedding_model="e", first_token_s=5.0) as engine,
    ):
        vectors = [asyncio.ensure_future(engine.embed(["moss"])) for _ in range(9)]
        await until(lambda: len(far.calls) == 2)
        assert (await Heard(engine).last()).finish == "stop"
        assert not any(vector.done() for vector in vectors)
        for vector in vectors:
            vector.cancel()


# What is broken below HTTP


@pytest.fixture
def encrypted(tmp_path: Path) -> tuple[ssl.SSLContext, Path]:
    """What a server encrypts with, and the file of its certificate, which nobody else has."""
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    made = subprocess.run(
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 "
        f"-subj /CN=localhost -addext subjectAltName=DNS:localhost -keyout {key} "
        f"-out {certificate}".split(),
        capture_output=True,
    )
    if made.returncode:
        pytest.skip("openssl makes no certificate here")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context, certificate


async def test_a_server_that_is_not_trusted_is_told_nothing_and_said_to_be(
    encrypted: tuple[ssl.SSLContext, Path],
) -> None:
    async with far_server(saying("Well."), encryption=encrypted[0]) as far:
        async with remote(far.url) as engine:
            assert isinstance((await Heard(engine).last()).refusal, RemoteUnavailable)
            assert engine.gauges()["remote_errors_unreachable"] == 1
        assert far.calls == []
        async with remote(far.url, ca_file=str(encrypted[1])) as engine:
            assert (await Heard(engine).last()).finish == "stop"


async def test_encryption_that_breaks_is_a_cut(encrypted: tuple[ssl.SSLContext, Path]) -> None:
    async def answer(call: Call) -> None:
        await call.begin()
        await call.say("Hel")
        await asyncio.sleep(0.1)
        with socket.socket(fileno=os.dup(call.writer.get_extra_info("socket").fileno())) as below:
            below.send(b"\x17\x03\x03\x00\x40" + b"x" * 64)
        await call.gone.wait()

    async with (
        far_server(answer, encryption=encrypted[0]) as far,
        remote(far.url, ca_file=str(encrypted[1])) as engine,
    ):
        heard = Heard(engine)
        assert isinstance((await heard.last()).refusal, RemoteFailed)
        assert engine.gauges()["remote_errors_cut"] == 1
    assert heard.text == "Hel"


@pytest.mark.parametrize("secure", [True, False])
async def test_a_server_of_the_other_kind_is_a_typed_error(
    encrypted: tuple[ssl.SSLContext, Path], secure: bool
) -> None:
    async with far_server(saying("Well."), encryption=encrypted[0] if secure else None) as far:
        other = far.url.replace("https:", "http:") if secure else far.url.replace("http:", "https:")
        async with remote(other, connect_s=SOON) as engine:
            assert isinstance((await Heard(engine).last()).refusal, RemoteUnavailable)
