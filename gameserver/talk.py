"""`troupe talk`: a player in a terminal, over the same WebSocket as every game client."""

import asyncio
import contextlib
import sys
import threading

from rich.console import Console
from rich.text import Text

from gameserver.visitor import Message, Room, TalkError, Turn, Visitor

HELP = "@npc to speak to somebody else, /who for who is here, empty line to interrupt, /quit"


async def say_once(
    url: str, scene: str | None, player: str, npc: str, line: str, key: str | None = None
) -> None:
    """Say one line to one NPC and write the reply to stdout as it comes.

    Raises:
        TalkError: there is no reply to be had.
    """
    async with Visitor.entered(url, scene, player, key, greet=False) as (visitor, room):
        npc_id = _somebody(room, npc)
        number = await visitor.command("say", {"npc": npc_id, "text": line})
        said, turn = None, None
        async for message in visitor.messages():
            payload = message["d"]
            match message["t"]:
                case "error" if message.get("re") == number:
                    raise TalkError(payload["msg"])
                case "say.accepted" if message["re"] == number:
                    said = payload["msg"]
                case "npc.turn.start" if said in payload["cause"]:
                    turn = payload["turn"]
                case "npc.delta" if payload["turn"] == turn:
                    _write(payload["text"])
                case "npc.turn.end" if payload["turn"] == turn:
                    _write("\n")
                    if payload["status"] == "failed":
                        raise TalkError(payload.get("err", {}).get("msg", "the reply failed"))
                    return
        raise TalkError("the server closed the connection before the reply was finished")


async def talk(url: str, scene: str | None, player: str, key: str | None = None) -> None:
    """Talk until the person leaves.

    Raises:
        TalkError: the connection is gone.
    """
    async with Visitor.entered(url, scene, player, key, greet=True) as (visitor, room):
        await Chat(visitor, room).run()


class Chat:
    """A conversation in a terminal. One turn streams at a time; others appear when they end."""

    def __init__(self, visitor: Visitor, room: Room) -> None:
        self._visitor = visitor
        self._room = room
        self._npc = next(iter(room.npcs))
        self._streaming: str | None = None
        self._console = Console(highlight=False)

    async def run(self) -> None:
        """Read lines and messages until the input ends or somebody types /quit."""
        self._print(self._room.title, "bold yellow")
        self._who()
        self._print(f"You speak to {self._name(self._npc)}. {HELP}", "dim")
        loop = asyncio.get_running_loop()
        lines: asyncio.Queue[str | None] = asyncio.Queue()
        threading.Thread(target=_read_lines, args=(loop, lines), daemon=True).start()
        listening = asyncio.create_task(self._listen())
        try:
            while True:
                typing = asyncio.create_task(lines.get())
                await asyncio.wait({typing, listening}, return_when=asyncio.FIRST_COMPLETED)
                if listening.done():
                    typing.cancel()
                    listening.result()
                    return
                line = typing.result()
                if line is None or line.strip() == "/quit":
                    return
                await self._typed(line.strip())
        finally:
            listening.cancel()

    async def _typed(self, line: str) -> None:
        if line == "/who":
            self._who()
            return
        if not line:
            await self._interrupt()
            return
        if line.startswith("@"):
            name, _, line = line[1:].partition(" ")
            npc = self._room.find_npc(name)
            if npc is None:
                self._print(f"There is no {name} here.", "red")
                return
            self._npc = npc
            if not line.strip():
                self._print(f"You speak to {self._name(npc)}.", "dim")
                return
        await self._visitor.command("say", {"npc": self._npc, "text": line.strip()})

    async def _interrupt(self) -> None:
        turn = self._streaming or next(iter(self._room.turns), None)
        if turn is None:
            return
        heard = self._room.turns[turn].chunks
        payload: Message = {"turn": turn, "mode": "truncate"}
        if heard:
            payload["heard_i"] = heard - 1
        await self._visitor.command("npc.interrupt", payload)

    async def _listen(self) -> None:
        async for message in self._visitor.messages():
            self._heard(message["t"], message["d"], private=message.get("st") == "me")

    def _heard(self, kind: str, payload: Message, *, private: bool) -> None:
        turns = self._room.turns
        match kind:
            case "presence":
                for change in payload["changes"]:
                    self._presence(change)
            case "player.said" if payload["player"] != self._visitor.player:
                player = payload["player"]
                speaker = self._room.players.get(player) or str(player)
                self._line(speaker, payload["text"], "cyan", private=private)
            case "npc.turn.start":
                turns[payload["turn"]] = Turn(payload["npc"])
            case "npc.turn.sync":
                turns[payload["turn"]] = Turn(payload["npc"], payload["text"], payload["n"])
            case "npc.delta" if payload["turn"] in turns:
                turn = turns[payload["turn"]]
                turn.text += payload["text"]
                turn.chunks = payload["i"] + payload["n"]
                if self._streaming is None:
                    self._streaming = payload["turn"]
                    self._line(self._name(turn.npc), turn.text, "yellow", private=private, end="")
                elif self._streaming == payload["turn"]:
                    _write(payload["text"])
            case "npc.turn.end":
                self._ended(payload, private=private)
            case "error":
                self._print(payload["msg"], "red")

    def _ended(self, payload: Message, *, private: bool) -> None:
        self._room.turns.pop(payload["turn"], None)
        if self._streaming == payload["turn"]:
            self._streaming = None
            _write("\n")
        elif payload["text"]:
            self._line(self._name(payload["npc"]), payload["text"], "yellow", private=private)
        usage, facts = payload["usage"], []
        if payload["status"] != "completed":
            facts.append(payload["status"])
        if usage["prompt"]:  # greetings and barks come from a file
            if usage["ttft_ms"] is not None:
                facts.append(f"first token {usage['ttft_ms']} ms")
            facts.append(f"{usage['cached']} of {usage['prompt']} prompt tokens cached")
        if facts:
            self._print("  " + ", ".join(facts), "dim")

    def _presence(self, change: Message) -> None:
        player = change["player"]
        name = change.get("meta", {}).get("name", player)
        if change["what"] == "leave":
            self._room.players.pop(player, None)
        else:
            self._room.players[player] = name
        if player != self._visitor.player and change["what"] in ("join", "leave"):
            self._print(f"{name} {'came in' if change['what'] == 'join' else 'left'}", "dim")

    def _who(self) -> None:
        for npc in self._room.npcs.values():
            badge = " (has a quest)" if npc["quest_giver"] else ""
            self._print(f"  {npc['name']}, {npc['role']}{badge}")
        self._print(f"  players: {', '.join(self._room.players.values())}", "cyan")

    def _name(self, npc: str) -> str:
        return str(self._room.npcs.get(npc, {}).get("name", npc))

    def _line(self, who: str, text: str, style: str, *, private: bool, end: str = "\n") -> None:
        label = f"{who} (whispers): " if private else f"{who}: "
        # Text never passes through rich's markup: it belongs to players and models.
        self._console.print(Text(_printable(label), style), Text(_printable(text)), sep="", end=end)
        sys.stdout.flush()

    def _print(self, text: str, style: str = "") -> None:
        self._console.print(Text(_printable(text), style))


def _somebody(room: Room, name: str) -> str:
    npc = room.find_npc(name)
    if npc is None:
        known = ", ".join(room.npcs)
        raise TalkError(f"nobody here is called {name}; there are {known}")
    return npc


def _printable(text: str) -> str:
    """Without control characters: nobody's words may steer the terminal."""
    return "".join(c for c in text if c.isprintable() or c == "\n")


def _write(text: str) -> None:
    sys.stdout.write(_printable(text))
    sys.stdout.flush()


def _read_lines(loop: asyncio.AbstractEventLoop, lines: "asyncio.Queue[str | None]") -> None:
    """Runs in a thread: terminals can only be read by blocking."""
    with contextlib.suppress(RuntimeError):  # the loop may be gone before the terminal is
        for line in sys.stdin:
            loop.call_soon_threadsafe(lines.put_nowait, line.rstrip("\n"))
        loop.call_soon_threadsafe(lines.put_nowait, None)
