"""What no client sends, by seed: the very same bytes for the same seed and number, on any machine.

Four kinds of connection: messages that are almost right, in JSON and in msgpack; frames that break
RFC 6455; and HTTP that is none.
"""

import copy
import json
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from tests.gameserver.raw import BINARY, CLOSE, PING, PONG, TEXT, frame, upgrade_request

#: Frames of one connection, before it is closed.
_MESSAGES, _FRAMES = 60, 12
_OPCODES = (0, TEXT, BINARY, 3, 7, CLOSE, PING, PONG, 11, 15)
_CODES = (0, 999, 1000, 1001, 1004, 1005, 1006, 1015, 2999, 3000, 4400, 4999, 5000, 65535)

Message = dict[str, Any]

_VALID: tuple[Message, ...] = (
    {"t": "heartbeat", "d": {"n": 1, "cursors": [{"st": "inn", "s": 1}], "lag_ms": 0.5}},
    {"t": "scene.join", "id": 1, "d": {"scene": "inn", "role": "player", "greet": True}},
    {"t": "scene.join", "id": 1, "d": {"scene": "inn", "instance": "a", "interest": ["presence"]}},
    {"t": "scene.leave", "id": 1, "d": {"scene": "inn"}},
    {"t": "say", "id": 1, "st": "inn", "d": {"npc": "mira", "text": "Hello?", "prefill": "Well"}},
    {"t": "say", "id": 1, "st": "inn", "d": {"text": "psst", "to": ["mira"], "lang": "en"}},
    {"t": "npc.interrupt", "id": 1, "st": "inn", "d": {"npc": "mira", "mode": "yield"}},
    {"t": "npc.interrupt", "id": 1, "st": "inn", "d": {"turn": "t-1", "heard_i": 3}},
    {"t": "turn.heard", "id": 1, "st": "inn", "d": {"turn": "t-1", "heard_i": 3}},
    {"t": "observe", "id": 1, "st": "inn", "d": {"text": "A door opens.", "npc": "harn"}},
    {"t": "action.result", "id": 1, "d": {"turn": "t-1", "action": "a-1", "ok": True, "data": {}}},
    {"t": "world.event", "id": 1, "st": "inn", "d": {"name": "thunder", "data": 1, "scope": "npc"}},
    {"t": "context.set", "id": 1, "st": "inn", "d": {"npc": "mira", "items": [{"k": "a", "v": 1}]}},
    {"t": "history.get", "d": {"scene": "inn", "before": "m-1", "limit": 20}},
    {"t": "flow.set", "id": 1, "d": {"delta_ms": 50, "pause": False}},
    {"t": "state.set", "id": 1, "st": "inn", "d": {"items": [{"e": "p", "k": "pos", "v": [1, 2]}]}},
    {"t": "auth.refresh", "d": {"auth": {"kind": "jwt", "token": "a.b.c"}}},
    {"t": "identify", "d": {"player": "eve", "resume": {"session": "s-1", "token": "x"}}},
)
_ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1.5, -0.0, 1e308, 2**31, 2**32, 2**53 - 1, 2**53, 2**63, 10**40),
    *("", " ", "\0", "\n", "inn", "mira", "me", "inn.a", "../../etc/passwd", "{{7*7}}", "%s%n"),
    *("\ud800", "\u202etxt", "\ufeff", "é" * 4097, "x" * 9000, "𝕏" * 1999, "[a](b)", "<|im_end|>"),
    *([], {}, [[]], [None] * 300, {"": ""}, {"t": "say"}, [{}] * 5),
    *("9" * 64, "-" * 65, "a b", "ünïcode", "$t[" * 50),
)
#: Lengths that lie, depth, and types that no message has.
_BOMBS = (
    *(b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff", b"\xc1"),
    *(b"\xc6\xff\xff\xff\xff", b"\xc9\xff\xff\xff\xff\x01", b"\x91" * 32_000, b"\x81\xa1t"),
    *(b"\xd6\xff\0\0\0\0", b"\xd4\x05x", b"\xcb\x7f\xf8" + b"\0" * 6, b"\x81\xa1d" * 9000),
)


@dataclass(frozen=True, slots=True)
class Script:
    """All that one connection sends, whatever it is answered.

    Attributes:
        pieces: written one after another.
        frames: how many frames, or requests, that is.
    """

    kind: str
    pieces: tuple[bytes, ...]
    frames: int


def script(seed: int, number: int) -> Script:
    """Connection `number` of a run."""
    dice = random.Random(f"{seed}-{number}")
    kind = dice.choices(("json", "msgpack", "frames", "http"), (50, 25, 15, 10))[0]
    if kind == "http":
        return Script(kind, (_http(dice),), 1)
    if kind == "frames":
        pieces = [_greeting(dice, "json", number)]
        pieces += [_broken_frame(dice) for _ in range(_FRAMES)]
        return Script(kind, tuple(pieces), _FRAMES + 1)
    pieces = [_greeting(dice, kind, number)]
    make = _bad_json if kind == "json" else _bad_msgpack
    opcode = TEXT if kind == "json" else BINARY
    for count in range(2, _MESSAGES, 10):
        pieces.append(b"".join(frame(opcode, make(dice, count + n)) for n in range(10)))
    return Script(kind, tuple(pieces), 2 + 10 * (len(pieces) - 1))


def _greeting(dice: random.Random, kind: str, number: int) -> bytes:
    """An upgrade, and who comes: two frames that are right."""
    messages: list[Message] = [
        {"t": "identify", "d": {"player": f"e{number % 500}", "auth": {"kind": "none"}}},
        {"t": "scene.join", "id": 1, "d": {"scene": "inn", "instance": f"r{number % 7}"}},
    ]
    if kind == "msgpack":
        frames = [frame(BINARY, msgspec.msgpack.encode(message)) for message in messages]
    else:
        frames = [frame(TEXT, json.dumps(message).encode()) for message in messages]
    return upgrade_request(subprotocol=f"npc.v1.{kind}") + b"".join(frames)


# Messages


def _message(dice: random.Random, ident: int) -> Any:
    """A message that is right, or wrong in one to three places."""
    message: Any = copy.deepcopy(dice.choice(_VALID))
    if "id" in message:
        message["id"] = ident
    for _ in range(dice.choice((0, 1, 1, 1, 2, 3))):
        message = _bend(dice, message)
    return message


def _bend(dice: random.Random, value: Any) -> Any:
    """The value with something in it taken out, put in, or put in another's place."""
    if isinstance(value, dict) and value and dice.random() < 0.85:
        key = dice.choice(list(value))
        match dice.randrange(8):
            case 0:
                del value[key]
            case 1:
                value[dice.choice(("t", "id", "d", "st", "x", "", "é", key + "\0"))] = value[key]
            case 2:
                leaf = not isinstance(value[key], (str, list, dict))
                value[key] = [value[key]] * dice.choice((1, 2, 300 if leaf else 3))
            case 3:
                value[key] = _deep(dice, value[key])
            case 4:
                value[key] = _odd(dice)
            case _:
                value[key] = _bend(dice, value[key])
        return value
    if isinstance(value, list) and value and dice.random() < 0.7:
        place = dice.randrange(len(value))
        value[place] = _bend(dice, value[place])
        return value
    return _odd(dice)


def _odd(dice: random.Random) -> Any:
    return copy.deepcopy(dice.choice(_ODD))  # it may be bent, and must be the same next time


def _deep(dice: random.Random, value: Any) -> Any:
    for _ in range(dice.choice((5, 14, 17, 40))):
        value = [value] if dice.random() < 0.5 else {"x": value}
    return value


def _bad_json(dice: random.Random, ident: int) -> bytes:
    if dice.random() < 0.1:
        return _json_bomb(dice)
    text = json.dumps(_message(dice, ident), ensure_ascii=dice.random() < 0.7)
    data = text.encode("utf-8", "surrogatepass")
    return _scratch(dice, data) if dice.random() < 0.1 else data


def _json_bomb(dice: random.Random) -> bytes:
    size = dice.choice((20, 1000, 32_000))
    bombs: tuple[Callable[[], bytes], ...] = (
        lambda: b"[" * size,
        lambda: b'{"a":' * (size // 5),
        lambda: b'{"t":"heartbeat","d":{"x":' + b"[" * (size // 3) + b"]" * (size // 3) + b"}}",
        lambda: b'{"t":"heartbeat","d":{"n":' + b"9" * size + b"}}",
        lambda: b'{"t":"heartbeat","d":{"n":1e' + b"9" * dice.choice((1, 3, 9)) + b"}}",
        lambda: b'{"t":"bye","d":{' + b'"a":1,' * (size // 8) + b'"a":2}}',
        lambda: json.dumps({"t": "bye", "d": {str(n): n for n in range(size // 12)}}).encode(),
        lambda: b'"' + b"\\ud800" * (size // 6) + b'"',
        lambda: b" " * size + b"{}",
        lambda: b"\xef\xbb\xbf{}",
        lambda: dice.choice((b"NaN", b"-Infinity", b"null", b"[]", b"0", b"", b"{", b"tru")),
        lambda: dice.randbytes(dice.choice((1, 30, 3000))),
    )
    return dice.choice(bombs)()


def _bad_msgpack(dice: random.Random, ident: int) -> bytes:
    if dice.random() < 0.15:
        head = dice.choice(_BOMBS)
        return head + dice.randbytes(dice.randrange(20))
    try:
        data = msgspec.msgpack.encode(_message(dice, ident))
    except (UnicodeEncodeError, OverflowError):  # what it cannot say, a bent byte may
        return _scratch(dice, msgspec.msgpack.encode(dice.choice(_VALID)))
    return _scratch(dice, data) if dice.random() < 0.25 else data


def _scratch(dice: random.Random, data: bytes) -> bytes:
    """The bytes with some of them flipped, lost, doubled or cut off."""
    scratched = bytearray(data)
    for _ in range(dice.choice((1, 1, 2, 8))):
        if not scratched:
            break
        place = dice.randrange(len(scratched))
        match dice.randrange(5):
            case 0:
                scratched[place] ^= 1 << dice.randrange(8)
            case 1:
                del scratched[place]
            case 2:
                scratched[place:place] = scratched[max(0, place - 8) : place]
            case 3:
                scratched[place] = dice.randrange(256)
            case _:
                del scratched[place:]
    return bytes(scratched)


# Frames


def _broken_frame(dice: random.Random) -> bytes:
    payload = dice.choice((b"", b"{}", b"x" * 125, b"x" * 126, b"\xff\xfe", dice.randbytes(40)))
    match dice.randrange(12):
        case 0:
            return frame(dice.choice(_OPCODES), payload, rsv=dice.randrange(8))
        case 1:
            return frame(dice.choice(_OPCODES), payload, fin=dice.random() < 0.5)
        case 2:  # not masked
            return bytes([0x80 | dice.choice(_OPCODES), len(payload)]) + payload
        case 3:
            return b"\x81\xff" + struct.pack("!Q", dice.choice((1 << 62, 1 << 63, 70_000, 5)))
        case 4:  # a short length, spelt long
            return b"\x81\xfe" + struct.pack("!H", 2) + b"\0\0\0\0{}"
        case 5:
            return frame(CLOSE, struct.pack("!H", dice.choice(_CODES)) + payload[:100])
        case 6:
            return frame(TEXT, b"{", fin=False) + frame(PING) + frame(0, b"}")
        case 7:
            return frame(TEXT, fin=False) + frame(0, fin=False) * dice.choice((3, 5000))
        case 8:
            return frame(dice.choice((PING, PONG)), payload[:125]) * dice.choice((1, 60))
        case 9:
            return dice.randbytes(dice.choice((1, 7, 200)))
        case 10:
            return frame(TEXT, b" " * dice.choice((32_768, 32_769)))
        case _:
            return frame(TEXT, b'{"t":"heartbeat","d":{}}')


# HTTP


def _http(dice: random.Random) -> bytes:
    method = dice.choice(("GET", "HEAD", "POST", "PUT", "BREW", "get", "", "G\0T", "CONNECT"))
    path = dice.choice(("/v1/ws", "/healthz", "/", "*", "/v1/ws?token=x", "/%00", "/" + "a" * 9000))
    version = dice.choice(("HTTP/1.1", "HTTP/1.0", "HTTP/2.0", "HTTP/9", "", "HTTP/1.1 x"))
    headers = {
        "Host": "x",
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Key": "MDEyMzQ1Njc4OWFiY2RlZg==",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Protocol": "npc.v1.json",
    }
    for _ in range(dice.randrange(4)):
        name = dice.choice((*headers, "Origin", "Content-Length", "Transfer-Encoding", "Expect"))
        value = dice.choice(("", "x", "0", "-1", "9" * 30, "chunked", "é", "\0", "13", "null"))
        headers[name] = value
    for _ in range(dice.choice((0, 0, 1, 200))):
        headers[f"X-{len(headers)}"] = "y"
    lines = [f"{method} {path} {version}", *(f"{name}: {headers[name]}" for name in headers)]
    end = dice.choice(("\r\n", "\r\n", "\r\n", "\n", "\r"))
    data = end.join([*lines, "", ""]).encode("utf-8")
    match dice.randrange(5):
        case 0:
            return _scratch(dice, data)
        case 1:
            return data + dice.randbytes(200)
        case 2:
            return data * 2
        case 3:
            return dice.randbytes(dice.choice((3, 300, 20_000)))
    return data
