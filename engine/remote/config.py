"""Where a remote model is and how it is asked, each setting with the reason for its default."""

import json
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec

Count = Annotated[int, msgspec.Meta(ge=1)]
Size = Annotated[int, msgspec.Meta(ge=0)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]


class RemoteConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `remote:` section of the config file. Who waits is ordered as `engine:` says
    (`scheduling_policy`, `ageing_s`, `max_waiting`, `max_model_len`); all else of it is of no use
    here.
    """

    #: Addresses of servers of the same model, each with or without /v1; requests go round.
    urls: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    #: The model's name there; None takes the first that the server lists.
    model: str | None = None
    #: The model's own: a folder or hub id with tokenizer.json, or a .gguf file. With it token ids
    #: are sent to /v1/completions, as exact as in an engine of our own. None sends messages to
    #: /v1/chat/completions, which every server has, and counts four bytes of text as a token.
    tokenizer: str | None = None
    #: The name there of a model for embeddings; None: /v1/embeddings answers that there is none.
    embedding_model: str | None = None
    #: File that holds the API key, or name of an environment variable that does.
    key_file: str | None = None
    key_variable: str | None = None
    #: File of certificates (PEM) to trust beside the system's; and whether any is checked at all.
    ca_file: str | None = None
    verify: bool = True
    #: Most requests there at a time; all others wait here, where quest-givers go first. As many as
    #: the cluster decodes together: more would wait there, in its order.
    in_flight: Count = 64
    #: Of those, for class 0 (quest-givers) alone.
    reserved: Size = 0
    #: Whether only lines of the same scene and audience may share the server's cache (vLLM's
    #: `cache_salt`, where it is understood). Off, scenes of one pack share their beginning, too,
    #: and it is computed before players come.
    salted: bool = True
    #: Added to every request, as {"chat_template_kwargs": {"enable_thinking": false}}.
    extra: dict[str, Any] = {}
    #: How long a connection may take, a first token (the queue there included), every next one, and
    #: all of a reply's on average: one that only drips would hold its NPC for hours.
    connect_s: Seconds = 5.0
    first_token_s: Seconds = 30.0
    next_token_s: Seconds = 10.0
    mean_token_s: Seconds = 1.0
    #: How often a request that has no token yet is tried again.
    retries: Size = 2
    #: Failures in a row after which a server is left alone until it answers a question for its
    #: models; the first wait before that question, and the longest.
    failures: Count = 3
    backoff_s: Seconds = 0.5
    backoff_most_s: Seconds = 30.0
    #: Longest wait that a server may ask for (`Retry-After`).
    retry_after_most_s: Seconds = 60.0

    def __post_init__(self) -> None:
        """Raise ValueError naming the first setting that cannot work."""
        for url in self.urls:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError(f"urls: {url!r} is no http:// or https:// address")
            if parts.username or parts.password or parts.query or parts.fragment:
                raise ValueError("urls: an address holds no key and no query; see key_file")
        if len(set(self.urls)) < len(self.urls):
            raise ValueError("urls: an address stands there twice")
        if self.key_file is not None and self.key_variable is not None:
            raise ValueError("key_file and key_variable: name one of them")
        try:
            json.dumps(self.extra, allow_nan=False)
        except (ValueError, TypeError, RecursionError) as error:
            raise ValueError(f"extra holds what JSON cannot say: {error}") from error
        if self.reserved >= self.in_flight:
            raise ValueError(
                f"reserved must leave a slot of in_flight ({self.in_flight}) for everybody else, "
                f"{self.reserved} do not"
            )
        if self.backoff_s > self.backoff_most_s:
            raise ValueError(
                f"backoff_s is the first wait and at most backoff_most_s ({self.backoff_most_s}), "
                f"not {self.backoff_s}"
            )
