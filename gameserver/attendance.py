"""Who is in a running scene."""

from typing import TYPE_CHECKING

from gameserver.ledger import Ledger, State
from gameserver.messages import Change, Presence, PresenceChange, PresenceMeta, Role
from gameserver.protocol import Code, Refusal
from gameserver.streams import Stream

if TYPE_CHECKING:
    from gameserver.session import Session


class Attendance:
    """The sessions in a scene, and what is told of their players: several sessions of one player
    count as one.

    Attributes:
        members: the sessions, and what each is in the scene.
        states: of players, as announced.
    """

    def __init__(self, scene: Stream, ledger: Ledger) -> None:
        """`scene` is where comings and goings are announced."""
        self.members: dict[Session, Role] = {}
        self.states: dict[str, State] = {}
        self._scene = scene
        self._ledger = ledger

    def players(self) -> list[tuple[str, str, str]]:
        """Everybody in the scene: id, name, and whether "present" or "away"."""
        names = {member.player: member.name for member in self.members}
        return [(player, name, self.states[player]) for player, name in names.items()]

    def connected(self) -> set["Session"]:
        """The sessions that have a connection."""
        return {member for member in self.members if not member.away}

    def sessions_of(self, player: str) -> list["Session"]:
        """The sessions of one player."""
        return [member for member in self.members if member.player == player]

    def name_of(self, player: str) -> str:
        """A player's name; of one who is not here, the id."""
        return next((member.name for member in self.sessions_of(player)), player)

    def require_player(self, session: "Session") -> None:
        """Raise `Refusal` (`forbidden`) if a member only watches."""
        if self.members[session] == "observer":
            raise Refusal(Code.FORBIDDEN, "observers only watch")

    def announce(self, player: str, name: str, role: Role) -> None:
        """Tell of a player, if there is news."""
        sessions = self.sessions_of(player)
        known = self.states.pop(player, None)
        if sessions:
            self.states[player] = "away" if all(s.away for s in sessions) else "present"
        what: Change
        if self.states.get(player) == known:
            return
        if not sessions:
            what = "leave"
        elif known is None:
            what = "join"
        else:
            what = "away" if known == "present" else "back"
        change = PresenceChange(player, what, PresenceMeta(name, role))
        self._scene.append("presence", Presence([change]))
        self._ledger.announced(player, self.states.get(player))
