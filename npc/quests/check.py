"""Whether every stage of a quest can be reached, and can be left towards an end."""

from collections import deque
from collections.abc import Iterable, Mapping

from npc.quests.quest import Quest, Stage
from scenes.document import Section


def check_ways(section: Section, quest: Quest) -> None:
    """Complain about the first stage or step with which the quest cannot work.

    Args:
        section: top of the quest's file.

    Raises:
        PackError: names line and stage.
    """
    stages = quest.stages
    for stage in stages.values():
        _check_targets(section, quest, stage)
        _check_kind(section, stage)
        _check_order(section, stage)
    after = {stage.id: set(stage.leads_to()) for stage in stages.values()}
    reached = _closure(after, [quest.start])
    for stage in stages.values():
        if stage.id not in reached:
            problem = f"nothing leads to it from the first stage, {quest.start!r}"
            section.fail(f"stages {stage.id}", problem, stage.line)
    before: dict[str, set[str]] = {stage: set() for stage in stages}
    for stage_id, targets in after.items():
        for target in targets:
            before[target].add(stage_id)
    ends = [stage.id for stage in stages.values() if stage.ending]
    if not ends:
        section.fail("stages", "none of them has an ending, so the quest never ends")
    ending = _closure(before, ends)
    for stage in stages.values():
        if stage.id not in ending:
            section.fail(f"stages {stage.id}", "no ending can be reached from it", stage.line)


def _check_targets(section: Section, quest: Quest, stage: Stage) -> None:
    lines = [(step.to, step.line) for step in stage.steps]
    for target, line in [*lines, *([(stage.late, stage.line)] if stage.after_s else [])]:
        if target not in quest.stages:
            known = ", ".join(quest.stages)
            problem = f"leads to {target!r}, which is no stage (there are {known})"
            section.fail(f"stages {stage.id}", problem, line)
        if target == stage.id:
            section.fail(f"stages {stage.id}", "leads to itself", line)


def _check_kind(section: Section, stage: Stage) -> None:
    ways = list(stage.leads_to())
    if stage.ending and ways:
        section.fail(f"stages {stage.id}", "is an ending, and nothing comes after it", stage.line)
    if not stage.ending and not ways:
        problem = "is a dead end: it needs next or timeout, or an ending"
        section.fail(f"stages {stage.id}", problem, stage.line)


def _check_order(section: Section, stage: Stage) -> None:
    """Of the steps that fit the first is taken: one behind the same without conditions never is."""
    for at, step in enumerate(stage.steps):
        for earlier in stage.steps[:at]:
            if earlier.on == step.on and set(earlier.when) <= set(step.when):
                problem = f"its step to {step.to!r} is never taken: line {earlier.line} comes first"
                section.fail(f"stages {stage.id}", problem, step.line)


def _closure(edges: Mapping[str, Iterable[str]], start: Iterable[str]) -> set[str]:
    """All that can be reached from `start`, itself included."""
    found, waiting = set(start), deque(start)
    while waiting:
        for target in edges[waiting.popleft()]:
            if target not in found:
                found.add(target)
                waiting.append(target)
    return found
