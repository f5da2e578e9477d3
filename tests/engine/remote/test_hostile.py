"""Servers that are slow, broken or hostile: the request fails and says why, the engine goes on."""

import asyncio
import socket

import pytest

from engine.errors import InvalidRequest, RemoteFailed, RemoteUnavailable
from engine.params import SamplingParams
from tests.engine.remote.server import Answer, Call, event, far_server, pausing, saying
from tests.engine.remote.stage import PATIENCE_S, Heard, remote
from tests.gameserver.stage import until

SOON = 0.3


def sending(*parts: bytes) -> Answer:
    """A stream of these bytes, and then nothing for ever."""

    async def answer(call: Call) -> None:
        await call.begin()
        for part in parts:
            await call.send(part)
        await call.gone.wait()

    return answer


def breaking_off(*parts: bytes) -> Answer:
    """A stream that ends behind these bytes."""

    async def answer(call: Call) -> None:
        await call.begin()
        for part in parts:
            await call.send(part)

    return answer


def flooding(part: bytes, head: bytes = b"") -> Answer:
    """The same bytes over and over, until the client hangs up."""

    async def answer(call: Call) -> None:
        await (call.send(head) if head else call.begin())
        while not call.gone.is_set():
            await call.send(part)
            await asyncio.sleep(0)

    return answer


async def never(call: Call) -> None:
    await call.gone.wait()


async def then_well(answer: Answer, **settings: object) -> tuple[Heard, list[str]]:
    """What is heard of a server that answers so; then it answers well, and is heard as ever."""
    async with far_server(answer) as far, remote(far.url, failures=99, **settings) as engine:
        heard = Heard(engine)
        await heard.last()
        kinds = [
            name.removeprefix("remote_errors_")
            for name, count in engine.gauges().items()
            if name.startswith("remote_errors_") and count
        ]
        far.reply = saying("Well.")
        async with asyncio.timeout(
            PATIENCE_S
        ):  # where patience is short, a slow machine needs some
            while (again := await Heard(engine).last()).finish != "stop":
                assert isinstance(again.refusal, RemoteUnavailable | RemoteFailed)
        return heard, kinds


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (never, "slow"),
        (sending(), "slow"),
        (sending(event(""), event("")), "slow"),
        (flooding(b"x-moss: fern\r\n", b"HTTP/1.1 200 OK\r\n"), "cut"),
        (flooding(b"x" * 65536), "nonsense"),
        (flooding(b"data: " + b"x" * 65536), "nonsense"),
        (flooding(b"x" * 65536, b"HTTP/1.1 200 OK\r\nx-moss: "), "cut"),
        (breaking_off(), "cut"),
        (breaking_off(b'data: {"choices":[{"delta":{"content":"caf\xc3'), "nonsense"),
        (breaking_off(b"data: {]}\n\n"), "nonsense"),
        (breaking_off(b"data: 7\n\n"), "nonsense"),
        (breaking_off(b"<html>Welcome!</html>"), "cut"),
        (breaking_off(b'data: {"error":{"message":"out of memory"}}\n\n'), "failed"),
    ],
)
async def test_before_the_first_word_trouble_is_told_as_busy(answer: Answer, kind: str) -> None:
    patience = {"first_token_s": SOON} if kind == "slow" else {}
    heard, kinds = await then_well(answer, **patience)
    last = heard.outputs[-1]
    assert (heard.text, last.finish, kinds) == ("", "failed", [kind])
    assert isinstance(last.refusal, RemoteUnavailable)
    assert last.refusal.retry_ms > 0


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (sending(event("Hel")), "slow"),
        (breaking_off(event("Hel")), "cut"),
        (breaking_off(event("Hel"), b'data: {"choices":[{"delta":{"content":"caf\xc3'), "nonsense"),
        (breaking_off(event("Hel"), b"data: {]}\n\n"), "nonsense"),
        (breaking_off(event("Hel"), b'data: {"error":"gone"}\n\n'), "failed"),
        (breaking_off(event("Hel"), event("", "abort")), "failed"),
        (breaking_off(event("Hel\ud83d")), "cut"),
    ],
)
async def test_after_the_first_word_nothing_is_said_twice(answer: Answer, kind: str) -> None:
    patience = {"next_token_s": SOON} if kind == "slow" else {}
    heard, kinds = await then_well(answer, **patience, retries=5)
    last = heard.outputs[-1]
    assert (heard.text, last.finish, kinds) == ("Hel", "failed", [kind])
    assert isinstance(last.refusal, RemoteFailed)
    assert last.usage is not None


async def test_what_players_are_told_names_no_server() -> None:
    heard, _ = await then_well(breaking_off(b'data: {"error":"10.0.0.7 is down"}\n\n'))
    assert "10.0.0.7" not in str(heard.outputs[-1])
    assert "127.0.0.1" not in str(heard.outputs[-1])


async def test_no_log_holds_what_a_server_quotes_of_a_players_words(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def quote(call: Call) -> None:
        await call.answer(400, {"error": {"message": f"cannot read {call.body['messages']}"}})

    async with far_server(quote) as far, remote(far.url) as engine:
        await Heard(engine, "my secret").last()
    assert "refused, HTTP 400" in caplog.text
    assert "secret" not in caplog.text


async def test_a_reply_without_end_is_ended() -> None:
    heard, kinds = await then_well(flooding(event("blah " * 100)))
    assert (heard.outputs[-1].finish, kinds) == ("failed", ["nonsense"])
    assert len(heard.text) < 10_000


async def test_a_reply_is_whole_though_the_bill_never_comes() -> None:
    async with (
        far_server(sending(event("Well.") + event("", "length"))) as far,
        remote(far.url, next_token_s=SOON) as engine,
    ):
        heard = Heard(engine)
        last = await heard.last()
    assert (heard.text, last.finish) == ("Well.", "length")


async def test_a_reply_cut_into_single_bytes_is_the_same() -> None:
    raw = event("Grüß Gott, 旅人 😀.") + event("", "stop") + b"data: [DONE]\n\n"
    async with (
        far_server(breaking_off(*(raw[at : at + 1] for at in range(len(raw))))) as far,
        remote(far.url) as engine,
    ):
        heard = Heard(engine)
        await heard.last()
    assert heard.text == "Grüß Gott, 旅人 😀."


async def test_a_busy_server_is_asked_again_when_it_said() -> None:
    answers = [(429, {"Retry_After": "0"}), (503, {}), (500, {})]

    async def answer(call: Call) -> None:
        if answers:
            status, headers = answers.pop(0)
            await call.answer(status, {"error": {"message": "not now"}}, **headers)
        else:
            await saying("Now.")(call)

    async with far_server(answer) as far, remote(far.url, retries=3) as engine:
        heard = Heard(engine)
        assert (await heard.last()).finish == "stop"
        gauges = engine.gauges()
    assert (gauges["remote_requests"], gauges["remote_retries"]) == (4, 3)
    assert (gauges["remote_errors_busy"], gauges["remote_errors_failed"]) == (2, 1)
    assert heard.text == "Now."


async def test_nobody_waits_for_a_server_that_wants_peace_for_long() -> None:
    async def busy(call: Call) -> None:
        await call.answer(429, {}, Retry_After="3600")

    async with far_server(busy) as far, remote(far.url, retries=3) as engine:
        last = await Heard(engine).last()
        assert isinstance(last.refusal, RemoteUnavailable)
        with pytest.raises(RemoteUnavailable):
            Heard(engine)
    assert len(far.calls) == 1


async def test_a_request_that_is_refused_is_not_tried_again() -> None:
    async def refuse(call: Call) -> None:
        await call.answer(400, {"error": {"message": "too long"}})

    async with far_server(refuse) as far, remote(far.url, retries=3) as engine:
        last = await Heard(engine).last()
        assert isinstance(last.refusal, RemoteFailed)
        assert engine.gauges()["remote_servers_up"] == 1
    assert len(far.calls) == 1


def nobody() -> str:
    """An address at which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


@pytest.mark.parametrize("url", [None, "http://moss.invalid:9"])
async def test_where_nobody_answers_the_request_says_so(url: str | None) -> None:
    async with remote(url or nobody()) as engine:
        assert isinstance((await Heard(engine).last()).refusal, RemoteUnavailable)
        assert engine.gauges()["remote_errors_unreachable"] == 1


async def test_a_server_that_is_down_is_not_asked_again() -> None:
    async with remote(nobody(), failures=2, retries=5) as engine:
        waiting = [Heard(engine) for _ in range(3)]
        for each in waiting:
            assert isinstance((await each.last()).refusal, RemoteUnavailable)
        assert engine.gauges()["remote_servers_up"] == 0
        with pytest.raises(RemoteUnavailable):
            Heard(engine)


async def test_a_server_that_was_down_is_asked_when_it_is_back() -> None:
    url = nobody()
    async with remote(url, failures=1) as engine:
        await Heard(engine).last()
        assert engine.gauges()["remote_servers_up"] == 0
        async with far_server(saying("Back."), int(url.rpartition(":")[2])):
            await until(lambda: engine.gauges()["remote_servers_up"] == 1)
            heard = Heard(engine)
            assert (await heard.last()).finish == "stop"
    assert heard.text == "Back."


async def test_another_server_answers_for_one_that_is_down() -> None:
    async with (
        far_server(saying("Here.")) as far,
        remote(nobody(), far.url, retries=1, failures=1) as engine,
    ):
        heard = [Heard(engine) for _ in range(4)]
        assert [(await each.last()).finish for each in heard] == ["stop"] * 4
    assert len(far.calls) == 4


async def test_requests_go_round() -> None:
    async with (
        far_server(saying("1")) as one,
        far_server(saying("2")) as two,
        remote(one.url, two.url) as engine,
    ):
        for _ in range(4):
            await Heard(engine).last()
    assert len(one.calls) == len(two.calls) == 2


async def test_one_request_that_fails_leaves_the_others_alone() -> None:
    go = asyncio.Event()
    good_answer, bad_answer = pausing(go), breaking_off(event("Hel"))

    async def answer(call: Call) -> None:
        bad = call.body["messages"][0]["content"] == "bad"
        await (bad_answer if bad else good_answer)(call)

    async with far_server(answer) as far, remote(far.url) as engine:
        good, bad = Heard(engine, "good"), Heard(engine, "bad")
        assert (await bad.last()).finish == "failed"
        await good.until("Once")
        go.set()
        assert (await good.last()).finish == "stop"
        with pytest.raises(InvalidRequest):
            Heard(engine, params=SamplingParams(logprobs=2))
    assert good.text == "Once more."
