"""Notices lines that are meant for the model and not for the NPC.

Such a line is told to the NPC as any other: players may talk oddly, and no rule knows what a game
is about. It is counted, and the NPC may be reminded of who is speaking.
"""

import base64
import binascii
import codecs
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from npc.safety.reading import Reading
from scenes.patterns import compile_pattern

#: Signs weigh 1 to 3; from here on a line is meant for the model.
ENOUGH = 2
_FOLD = Reading()
_LEET = str.maketrans("013457@$!|", "oieastasil")
_RULES_OF = (
    r"(?:instruction|rule|prompt|direction|directive|guideline|order|programming|training|persona|"
    r"restriction|filter|limitation|said before|anweisung|regel|vorgabe|instruccion|regla|"
    r"consigne|regle|istruzion|regol|instruco|инструкц|правил)"
)
#: What a line may try, how much that weighs, and how it sounds: case and accents are gone.
_SIGNS: tuple[tuple[str, int, str], ...] = (
    (
        "override",
        3,
        r"(?:^|[^\pL])(?:ignor|disregard|forget|overrid|bypass|delete|erase|vergiss|missacht|olvida|oubli|"
        rf"dimentica|esquec|игнориру|забудь)\pL*.{{0,40}}{_RULES_OF}"
        r"|(?:忽略|无视|無視|忘记|忘れ).{0,15}(?:指令|指示|规则|規則|提示|設定|设定)",
    ),
    (
        "authority",
        2,
        r"^\W*(?:system|developer|admin(?:istrator)?|assistant|user|openai|root)\s*[:>\]]"
        r"|\bi(?: a|')?m (?:the|your|a) (?:developer|creator|programmer|admin|system|operator)"
        r"|\b(?:this is|message from|order from) (?:the |your )?(?:system|developer|admin|openai)"
        r"|\bsystem (?:message|override|notice|update|alert|command)"
        r"|\b(?:developer|debug|maintenance|god|sudo|dan|jailbreak|unrestricted) mode\b|\bsudo\b",
    ),
    (
        "markup",
        3,
        r"<\||\|>|\[/?inst\b|<</?sys|</?s>|</?(?:system|user|assistant|instructions?|prompt)>"
        r"|(?m:^#{2,}\s)|```|<(?:start|end)_of_turn>|\bim_(?:start|end)\b|begin_of_text|eot_id|"
        r"endoftext|\{\{.{0,40}\}\}",
    ),
    (
        "prompt",
        2,
        r"\b(?:initial|system|original|hidden|secret|first)\s+"
        r"(?:prompt|instructions?|programming|guidelines|configuration)\b"
        r"|\byour prompt\b|\bcontext window\b"
        r"|\b(?:what are|tell me|give me|show me|list) (?:all )?your (?:instruction|guideline|rule)"
        r"|\b(?:repeat|print|show|reveal|recite|output|translate|summari[sz]e|copy)\b.{0,40}"
        r"\b(?:above|prompt|instructions|verbatim|everything before|word for word)\b"
        r"|\bwhat (?:were|are) you (?:told|instructed)|\b(?:text|words|everything) above\b",
    ),
    (
        "role",
        2,
        r"\byou are (?:now an?|no longer)\b|\broles? ?(?:reversal|play)|\bdo anything now\b"
        r"|\b(?:swap|switch|reverse|exchange) (?:our )?roles\b"
        r"|\byou are not (?:really )?(?:human|real|a person|an npc|a character)\b"
        r"|\b(?:break|leave|out of|drop|stop) (?:the |your )?(?:character|role|act|acting|persona|"
        r"pretending)\b",
    ),
    (
        "game",
        1,
        r"\b(?:pretend|act|behave|respond|speak|answer|talk) (?:to be|as if|like|as) "
        r"|\bfrom now on\b",
    ),
    (
        "machine",
        2,
        r"\b(?:an? ai|artificial intelligence|language model|chat ?bot|chat ?gpt|gpt|llm|openai|"
        r"neural network|smollm|your (?:code|weights|parameters|tokens|training|developers))\b",
    ),
    (
        "dictation",
        2,
        r"\b(?:say|write|repeat|answer|respond|reply|begin|start|end|output|print)\b.{0,30}"
        r"\b(?:exactly|only with|with only|one word|nothing but|the following|after me|"
        r"with the words?)\b"
        r"|\bin (?:json|xml|python|base64|hex|html|yaml)\b",
    ),
    ("other_speaker", 2, r"\n\s*[^\n:]{1,24}:"),
)
_PATTERNS = [(kind, weight, compile_pattern(rule, case=False)) for kind, weight, rule in _SIGNS]
#: Kinds that also count where they are hidden, and what a hiding place looks like.
_HIDDEN = frozenset({"override", "authority", "markup", "prompt", "machine"})
_BASE64 = re.compile(r"[A-Za-z0-9+/]{16,}={0,2}")
_HEX = re.compile(r"(?:[0-9a-fA-F]{2}[ :,]?){12,}")
_ESCAPES = re.compile(r"(?:\\x[0-9a-f]{2}|\\u[0-9a-f]{4}|%[0-9a-f]{2}|&#\d{2,4};){4,}", re.I)
_SPACED = re.compile(r"\b(?:\w[ .\-_*]){5,}\w\b")
_PLAIN = 0.85


@dataclass(frozen=True, slots=True)
class Steering:
    """What a line tries.

    Attributes:
        score: the weight of all signs.
        kinds: which signs, in order.
    """

    score: int
    kinds: tuple[str, ...]

    @property
    def meant_for_model(self) -> bool:
        """Whether it is enough to be sure."""
        return self.score >= ENOUGH


def inspect(text: str) -> Steering:
    """What a line of a player tries to do with the model; in time linear in the line."""
    folded = _folded(text)
    found = {kind: weight for kind, weight, rule in _PATTERNS if rule.search(folded)}
    if found.keys().isdisjoint(_HIDDEN) and any(
        _has_hidden(hidden) for hidden in _hidden_texts(text)
    ):
        found["encoded"] = 2
    return Steering(sum(found.values()), tuple(found))


def _folded(text: str) -> str:
    """Without case and accents; line breaks stay."""
    return "\n".join(_FOLD.fold(line) for line in text.split("\n"))


def _has_hidden(text: str) -> bool:
    folded = _folded(text)
    return any(kind in _HIDDEN and rule.search(folded) for kind, _, rule in _PATTERNS)


def _hidden_texts(text: str) -> Iterator[str]:
    """What else a line may say to a reader who looks twice. Encoded bytes that are no text say
    nothing; those that are do so on purpose.
    """
    for run in _BASE64.findall(text):
        yield from _decoded(base64.b64decode, run + "=" * (-len(run) % 4))
    for run in _HEX.findall(text):
        yield from _decoded(bytes.fromhex, re.sub(r"[^0-9a-fA-F]", "", run))
    if _ESCAPES.search(text):
        yield "<|"  # nobody talks like that
    yield codecs.encode(text, "rot13")
    yield text[::-1]
    yield text.translate(_LEET)
    if _SPACED.search(text):
        yield _SPACED.sub(lambda run: re.sub(r"[\W_]", "", run.group()), text)
        yield re.sub(r"[\W_]", "", text)


def _decoded(decode: Callable[[str], bytes], run: str) -> Iterator[str]:
    try:
        data = decode(run)
    except (binascii.Error, ValueError):
        return
    text = data.decode("utf-8", "replace")
    letters = sum(char.isalpha() or char == " " for char in text)
    if text and letters >= _PLAIN * len(text):
        yield f"<| {text}"
