"""What one server understands, and a request in its words."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from engine.errors import ModelError
from engine.grammar import Kind
from engine.params import SamplingParams
from engine.remote.grammars import Fields, Way
from engine.remote.packed import Conversation

#: How prompts travel: ids to /v1/completions, or messages to /v1/chat/completions.
PromptForm = Literal["tokens", "chat"]
PATHS: Mapping[PromptForm, str] = {"tokens": "completions", "chat": "chat/completions"}
#: Stop strings that every server takes; the others are seen to here.
_STOPS = 4
#: Ways to ask that the last message, which is the reply's own, is gone on with: vLLM's, SGLang's.
CONTINUATIONS: tuple[Fields, ...] = (
    {"continue_final_message": True, "add_generation_prompt": False},
    {"continue_final_message": True},
)


@dataclass(frozen=True, slots=True)
class Dialect:
    """What a server understands.

    Attributes:
        model: the model's name there.
        form: how prompts travel.
        max_model_len: most tokens of prompt and output, if the server says so.
        limit: what it calls the most tokens of a reply.
        known: those fields of `optional` that it takes.
        continuation: fields that let it go on with a reply that is begun; None: it does not.
        ways: how it is told what a reply must look like, for the kinds it keeps to.
    """

    model: str
    form: PromptForm
    max_model_len: int | None = None
    limit: str = "max_tokens"
    known: frozenset[str] = frozenset()
    continuation: Fields | None = None
    ways: Mapping[Kind, Way] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """Where requests go, below /v1/."""
        return PATHS[self.form]

    @property
    def continues(self) -> bool:
        """Whether a reply may be begun for the server to go on with."""
        return self.form == "tokens" or self.continuation is not None

    def begins(self, prompt_ids: Sequence[int]) -> bool:
        """Whether a prompt holds the beginning of its reply, as far as can be seen."""
        return self.form == "chat" and Conversation.read(prompt_ids).begun

    @classmethod
    def common(cls, dialects: Sequence["Dialect"]) -> "Dialect":
        """What all of several servers of one model understand.

        Raises:
            ModelError: they do not serve the same model, or want other words for the same.
        """
        first, *others = dialects
        known, ways, lengths = first.known, dict(first.ways), [first.max_model_len]
        for other in others:
            if (other.model, other.limit) != (first.model, first.limit):
                raise ModelError(
                    f"remote.urls are not of one kind: one serves {first.model!r} and takes "
                    f"{first.limit}, one {other.model!r} and {other.limit}; name the model"
                )
            known &= other.known
            ways = {kind: way for kind, way in ways.items() if other.ways.get(kind) is way}
            lengths.append(other.max_model_len)
        alike = all(other.continuation == first.continuation for other in others)
        return replace(
            first,
            known=known,
            ways=ways,
            max_model_len=min((n for n in lengths if n is not None), default=None),
            continuation=first.continuation if alike else None,
        )

    def request(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        *,
        priority: int = 1,
        salt: str = "",
        stream: bool = True,
    ) -> Fields:
        """The body of a request."""
        fields = {
            "model": self.model,
            **self._prompt(prompt_ids),
            self.limit: params.max_tokens,
            "stream": stream,
        }
        wishes = optional(params, priority, salt, stream=stream)
        fields |= {name: value for name, value in wishes.items() if name in self.known}
        if params.grammar is not None:
            fields |= self.ways[params.grammar.kind].fields(params.grammar)
        return fields

    def _prompt(self, prompt_ids: Sequence[int]) -> Fields:
        if self.form == "tokens":
            return {"prompt": list(prompt_ids)}
        said = Conversation.read(prompt_ids)
        messages = [{"role": m.role, "content": m.content} for m in said.messages]
        return {"messages": messages, **((self.continuation or {}) if said.begun else {})}


def optional(params: SamplingParams, priority: int, salt: str, *, stream: bool) -> Fields:
    """Fields that not every server takes.

    What shapes the sampling is always said, also where it is usual: a server may have defaults of
    its own.
    """
    fields: Fields = {
        "temperature": params.temperature,
        "top_p": params.top_p,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        "top_k": params.top_k or -1,
        "min_p": params.min_p,
        "repetition_penalty": params.repetition_penalty,
        "priority": priority,
    }
    # What a grammar allows is not cut short by strings: it would end within an action.
    stops = params.stop[:_STOPS] if params.grammar is None else ()
    given = {
        "stop": list(stops),
        "min_tokens": params.min_tokens,
        "bad_words": list(params.bad_words),
        "ignore_eos": params.ignore_eos,
        "logit_bias": {str(token): bias for token, bias in params.logit_bias.items()},
        "cache_salt": salt,
        "stream_options": {"include_usage": True} if stream else {},
    }
    wanted = {name: value for name, value in given.items() if value}
    return fields | wanted | ({} if params.seed is None else {"seed": params.seed})
