"""What is done about words, each setting with the reason for its default."""

from typing import Annotated, Literal

import msgspec

Kind = Literal["password", "card", "email", "phone"]
Line = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class RedactionSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is taken out of players' lines before anybody else sees them."""

    #: Nothing of these is needed to talk to an NPC, and who types it into a game regrets it.
    kinds: tuple[Kind, ...] = ("password", "card", "email", "phone")
    #: What stands there instead; `{kind}` is the kind. Short, because the model reads it too.
    replacement: Annotated[str, msgspec.Meta(max_length=64)] = "[{kind}]"
    #: Countries whose numbers are known without a code, two letters each. Numbers with a code (+49
    #: 30 …) are known of all. Each one more finds more numbers that are none.
    phone_regions: tuple[Annotated[str, msgspec.Meta(pattern=r"\A[A-Z]{2}\Z")], ...] = ("US",)
    #: Scenes whose lines stay as they are, by id. Whoever runs the server decides that, not who
    #: wrote the scene.
    scenes_without: tuple[str, ...] = ()


class SafetySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `safety:` section of the config file."""

    redaction: RedactionSettings = RedactionSettings()
    #: JSON file of rules for what NPCs say, see docs/safety.md; none: no rules of your own. It is
    #: read again with the scenes.
    filter_file: str | None = None
    #: Whether NPCs are kept from saying that they are a machine, or what their prompt says. None:
    #: unless the model is a script, whose words are exact. Off for scenes of machines.
    in_character: bool | None = None
    #: How often an NPC looks for other words where a rule says `regenerate`. Each costs as much as
    #: a reply, and a model that fails thrice fails for ever.
    retries: Annotated[int, msgspec.Meta(ge=0, le=8)] = 2
    #: What it says if it finds none; the turn decides which. In nobody's voice, to suit everybody.
    deflections: Annotated[tuple[Line, ...], msgspec.Meta(min_length=1)] = (
        "Hm. Let us speak of something else.",
        "That is nothing I can talk about.",
        "I do not follow you. What else is on your mind?",
    )
    #: Whether the NPC is reminded of who is speaking when a line is meant for the model. Off: the
    #: default model repeats the reminder aloud, and leaves its part no less for it. Measure another
    #: model with `python -m benchmarks.attacks` before you switch it on.
    note_steering: bool = False
