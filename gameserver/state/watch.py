"""What one client knows of a scene's state: a cursor, and no copy of anything."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from gameserver.protocol import Encoded
from gameserver.state.registers import Register
from scenes.space import POS, Position

if TYPE_CHECKING:
    from gameserver.state.scene_state import SceneState

#: Bytes of items in one message: with the envelope it stays below the 8 KiB that engines like.
PAGE_BYTES = 8 * 1024 - 512


def everything(at: Position) -> bool:
    """What somebody sees who sees everything."""
    return True


class Watch:
    """A client's place in the changes of a scene's state.

    Moves that the player cannot see are passed over, but for a beat now and then with which all
    come that were made since the last such beat. So there are two cursors.
    """

    __slots__ = ("_begun", "_far", "_full", "_player", "_rev", "_since", "_state")

    def __init__(self, state: "SceneState", player: str) -> None:
        self._state = state
        self._player = player
        self.begin_anew()

    def begin_anew(self) -> None:
        """Tell the client everything."""
        self._rev = self._far = 0
        self._full = True
        self._begun = self._state.registers.rev  # up to here it is told all, moves too, and at once
        self._since = self._begun  # what was removed up to here, it never knew of

    def resume(self, rev: int | None, ep: int | None) -> None:
        """Go on after change `rev`, the last one that the client was told of by the owner of the
        scene in epoch `ep`; or begin anew, where that leads nowhere.
        """
        self.begin_anew()
        state = self._state
        known = rev is not None and ep == state.stream.ep and rev <= state.registers.rev
        if rev and known and rev >= state.registers.forgotten:
            self._rev = self._since = rev
            self._full = False
            self._far = 0 if state.has_sight else rev  # it may lack moves that it could not see

    @property
    def is_current(self) -> bool:
        """Whether there is nothing to tell."""
        return not (self._full or self._lacks_moves or self._is_behind or self._is_cut_off)

    def messages(self, is_kept: Callable[[int], bool]) -> Iterator[Encoded]:
        """What the client is to be told now. The cursors have moved before each is yielded.

        Args:
            is_kept: whether a unit of the journal is.
        """
        if self._is_cut_off:
            self.begin_anew()
        while (page := self._page(is_kept)) is not None:
            yield page

    @property
    def _until(self) -> int:
        """The last change that it may be told of."""
        return max(self._state.published, self._begun)

    @property
    def _is_behind(self) -> bool:
        return self._rev < self._until

    @property
    def _lacks_moves(self) -> bool:
        """Whether it is to be told all moves, those too that it could not see."""
        return self._far < max(self._state.far_published, self._begun)

    @property
    def _is_cut_off(self) -> bool:
        """Whether what it would have to be told of is not known any more."""
        return max(self._rev, self._since) < self._state.registers.forgotten

    def _page(self, is_kept: Callable[[int], bool]) -> Encoded | None:
        state, until, full = self._state, self._until, self._full
        all_moves = self._lacks_moves
        if not (full or all_moves or self._is_behind):
            return None
        sees = everything if all_moves else state.view(self._player)
        items: list[Register] = []
        reached, room = until, PAGE_BYTES
        for register in state.registers.since(self._far if all_moves else self._rev):
            if register.rev > until:
                break
            if not is_kept(register.unit) or (items and register.size > room):
                reached = register.rev - 1
                break
            if self._concerns(register, sees):
                room -= register.size + 1
                items.append(register)
        self._rev = max(self._rev, reached)
        if all_moves:
            self._far = max(self._far, reached)
        self._full = False
        return state.message(items, self._rev, full) if items or full else None

    def _concerns(self, register: Register, sees: Callable[[Position], bool]) -> bool:
        item = register.item
        if item.v is None and self._full:
            return False
        if item.k != POS or item.v is None:
            return register.rev > self._rev
        return sees(item.v)
