"""The game's workload: scenes share a long prefix, personas a shorter one, each player adds a line.

Token ids only, so that no tokenizer takes part; every engine gets the same ids and output length
and ignores the end of sequence.

    python -m gameserver.bench.workload --profile gpu --seed 0 > gpu-0.json
    python -m gameserver.bench.workload --profile gpu --seed 0 --turn-seed 7 > gpu-0-7.json
"""

import argparse
import json
import random
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Profile:
    """Sizes of a workload; `npcs` are of each scene, `players` of each NPC, the rest tokens."""

    scenes: int
    npcs: int
    players: int
    scene: int
    persona: int
    turn: int
    out: int
    vocab: int = 32000


PROFILES = {
    "gpu": Profile(8, 8, 4, 1024, 192, 96, 64),
    "long": Profile(2, 16, 8, 4096, 192, 96, 64),
    "lonely": Profile(256, 1, 1, 1024, 192, 96, 64),
    "cpu": Profile(2, 4, 2, 512, 128, 48, 48),
    "odd": Profile(2, 4, 2, 597, 151, 41, 48),
    "uneven": Profile(8, 8, 4, 1013, 187, 91, 64),
    "tiny": Profile(2, 2, 2, 64, 32, 16, 8),
}


@dataclass(frozen=True, slots=True)
class Line:
    """A player's line to an NPC; the prompt is scene + persona + turn."""

    id: str
    quest: bool
    scene: tuple[int, ...]
    persona: tuple[int, ...]
    turn: tuple[int, ...]

    @property
    def prompt(self) -> list[int]:
        """Scene, persona and line as one."""
        return [*self.scene, *self.persona, *self.turn]


def build(
    name: str,
    seed: int = 0,
    turn_seed: int | None = None,
    quest_share: float = 0.125,
    vocab: int | None = None,
) -> list[Line]:
    """The lines in random order; another `turn_seed` keeps scenes and personas and changes lines.

    The first NPCs of a scene are its quest-givers.

    Args:
        vocab: ids are from 100 to below this; None takes the profile's, which suits most models.
    """
    profile, chance = PROFILES[name], random.Random(seed)
    highest = vocab or profile.vocab

    def ids(count: int) -> tuple[int, ...]:
        return tuple(chance.randrange(100, highest) for _ in range(count))

    lines: list[Line] = []
    for s in range(profile.scenes):
        scene = ids(profile.scene)
        for n in range(profile.npcs):
            persona = ids(profile.persona)
            quest = n < max(1, round(profile.npcs * quest_share))
            for k in range(profile.players):
                lines.append(Line(f"s{s}n{n}p{k}", quest, scene, persona, ids(profile.turn)))
    chance.shuffle(lines)
    if turn_seed is not None:
        chance = random.Random(turn_seed)
        lines = [Line(x.id, x.quest, x.scene, x.persona, ids(profile.turn)) for x in lines]
    return lines


def main() -> None:
    """Print a workload as JSON, for engines that are measured by a script of their own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", choices=PROFILES, default="gpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--turn-seed", type=int)
    a = parser.parse_args()
    lines = build(a.profile, a.seed, a.turn_seed)
    requests = [{"id": x.id, "quest": x.quest, "prompt": x.prompt} for x in lines]
    print(json.dumps({"profile": a.profile, **asdict(PROFILES[a.profile]), "requests": requests}))


if __name__ == "__main__":
    main()
