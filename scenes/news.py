"""News: what an event of the world, or another value of a thing, means to the people of a scene, as
an author writes it.

An event has a name and data of strangers; what NPCs are told of it are the author's own words. Some
news make an NPC speak without being spoken to.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from scenes.conditions import PUBLIC, Condition, WorldState, read_conditions
from scenes.document import Scalar, Section
from scenes.reactions import Happening, same

MAX_NEWS = 200
MAX_TEXT = 500
_MAX_FIELDS = 64
_MAX_VALUE = 200
_MAX_SECONDS = 86_400
_COOLDOWN_S = 60


@dataclass(frozen=True, slots=True)
class News:
    """What is told of one event or thing.

    Attributes:
        name: of the event; of a thing ENTITY.KEY.
        text: what everybody in the scene knows from then on; of a thing in a scene with `hearing`,
            everybody who is near it.
        fields: details that must be as named, each with the values it may have; see `Happening`.
        wakes: the NPC who speaks of it at once; "" for none.
        cooldown_s: seconds after which it may wake that NPC again.
        when: what must hold of the world, its things and everybody's quests, or it is no news.
        cause: what it is of.
    """

    name: str
    text: str
    fields: tuple[tuple[str, tuple[Scalar, ...]], ...] = ()
    wakes: str = ""
    cooldown_s: int = _COOLDOWN_S
    when: tuple[Condition, ...] = ()
    cause: Literal["event", "thing"] = "event"

    def tell_of(self, what: Happening, state: WorldState) -> bool:
        """Whether these are the news of a happening in a world that is so."""
        named = what.cause == self.cause and what.name == self.name
        return named and self._fits(what.details) and all(c.holds(state) for c in self.when)

    def _fits(self, details: Mapping[str, object]) -> bool:
        return all(
            any(same(details.get(name), value) for value in values) for name, values in self.fields
        )


def read_news(section: Section) -> tuple[News, ...]:
    """The `news:` of a scene file. That those who are woken exist, is for others to check.

    Raises:
        PackError: names file, line and field of the first mistake.
    """
    return tuple(_news(inner) for inner in section.sections("news", MAX_NEWS))


def _news(section: Section) -> News:
    wakes = section.text("wakes", _MAX_VALUE, default="")
    if wakes:
        section.check_id("wakes", wakes)
    event, thing = (section.text(cause, _MAX_VALUE, default="") for cause in ("event", "thing"))
    if bool(event) == bool(thing):
        section.fail("", "must have an event or a thing, and not both")
    if event:
        section.check_id("event", event)
    news = News(
        name=event or thing,
        text=section.text("text", MAX_TEXT),
        fields=tuple(section.scalar_lists("with", _MAX_FIELDS, _MAX_VALUE).items()),
        wakes=wakes,
        cooldown_s=section.number("cooldown_s", 0, _MAX_SECONDS, default=_COOLDOWN_S),
        when=read_conditions(section),
        cause="event" if event else "thing",
    )
    for condition in news.when:
        if condition.about not in {*PUBLIC, "quests"}:
            problem = f"news ask for world, things and shared quests, not for {condition.about}"
            section.fail("when", problem)
    section.finish()
    return news
