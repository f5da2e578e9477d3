"""The engine's public face for scripts: many prompts in, their continuations out."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast, get_args

from engine.build import build_engine, load
from engine.chat import Message, Role
from engine.config import EngineConfig
from engine.errors import EngineError, InvalidRequest
from engine.loop import READ
from engine.options import EngineOptions
from engine.outputs import Embedding, FinishReason, RequestOutput, Usage
from engine.params import SamplingParams
from engine.pooling import Pooling, PoolingKind
from engine.progress import ProgressBar
from engine.request import Request

Turn = Message | Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Completion:
    """One finished continuation.

    Attributes:
        prompt: index of its prompt.
        sample: index among the `n` samples of that prompt.
        text, token_ids: of the continuation alone.
        finish_reason: "stop", "length" or "failed".
        usage: token counts and times.
        logprobs: for each token, log-probabilities by token id, if asked for.
        complete: with a grammar, whether the text is a whole text of it; see `RequestOutput`.
    """

    prompt: int
    sample: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage
    logprobs: tuple[dict[int, float], ...] | None
    complete: bool | None = None


@dataclass(frozen=True, slots=True)
class _Job:
    """One checked prompt of a batch; with `pooling` a text to be read."""

    prompt: int
    ids: tuple[int, ...]
    params: SamplingParams
    pooling: Pooling | None = None


@dataclass(frozen=True, slots=True)
class _Result:
    """All outputs of one sample of a job."""

    job: _Job
    sample: int
    outputs: tuple[RequestOutput, ...]


class LLM:
    """A model in this process, for scripts: `LLM("default").generate("Once upon a time")`."""

    def __init__(
        self,
        model: str = "default",
        config: EngineConfig | None = None,
        *,
        data_dir: Path | str = ".cache/troupe",
        gpu_memory_utilization: float | None = None,
        max_num_seqs: int | None = None,
        max_num_batched_tokens: int | None = None,
        max_model_len: int | None = None,
        block_size: int | None = None,
        enforce_eager: bool | None = None,
        dtype: str | None = None,
        scheduling_policy: str | None = None,
        seed: int | None = None,
        swap_space: float | None = None,
        kv_cache_dtype: str | None = None,
        tensor_parallel_size: int | None = None,
        quantization: str | None = None,
        enable_chunked_prefill: bool | None = None,
        enable_prefix_caching: bool | None = None,
    ) -> None:
        """Load `model`: "default", a GGUF file, a Hugging Face folder or a hub id.

        Args:
            model: which.
            config: all settings; without it the defaults, but no slots are reserved.
            data_dir: where what is fetched is kept.
            gpu_memory_utilization, max_num_seqs, max_num_batched_tokens, max_model_len, block_size,
            enforce_eager, dtype, scheduling_policy, seed, swap_space, kv_cache_dtype,
            tensor_parallel_size, quantization, enable_chunked_prefill, enable_prefix_caching:
                change `config`, see `engine.options.EngineOptions`.

        Raises:
            InvalidRequest: a setting is out of range, or asks for what is not built.
            ModelError: the model cannot be found, fetched or understood; the message says what to
                do.
            OutOfMemory: the KV cache does not fit.
        """
        config = EngineOptions(
            gpu_memory_utilization=gpu_memory_utilization,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=max_model_len,
            block_size=block_size,
            enforce_eager=enforce_eager,
            dtype=dtype,
            scheduling_policy=scheduling_policy,
            seed=seed,
            swap_space=swap_space,
            kv_cache_dtype=kv_cache_dtype,
            tensor_parallel_size=tensor_parallel_size,
            quantization=quantization,
            enable_chunked_prefill=enable_chunked_prefill,
            enable_prefix_caching=enable_prefix_caching,
        ).applied_to(config or EngineConfig(reserved_slots=0))
        loaded = load(model, config, data_dir=Path(data_dir))
        self._engine = build_engine(loaded, config)
        self._window = config.max_waiting
        self.tokenizer = loaded.tokenizer
        self.chat_format = loaded.chat

    def generate(
        self,
        prompts: str | Sequence[int] | Sequence[str | Sequence[int]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool | None = None,
    ) -> list[Completion]:
        """Continue each prompt; all of them run together.

        Results come in the order of the prompts, with `n` samples one after another.

        Args:
            prompts: one prompt or many; text (control tokens in it are ordinary text) or token ids.
            params: one for all, or one each.
            progress: whether to show a bar; None shows one when it takes long, on a terminal.

        Raises:
            InvalidRequest, ContextExceeded: one of them cannot be run; the message says which.
                Nothing ran.
        """
        batch = _several(prompts, "prompts must be text, token ids, or a list of such")
        if params is None or isinstance(params, SamplingParams):
            each = [params or SamplingParams()] * len(batch)
        else:
            _need_kind(params, Sequence, "params must be SamplingParams, or a list of them")
            each = list(params)
        if len(each) != len(batch):
            raise InvalidRequest(f"{len(batch)} prompts but {len(each)} sampling params")
        jobs = deque[_Job]()
        for index, (prompt, how) in enumerate(zip(batch, each, strict=True)):
            with _naming(f"in prompt {index}"):
                _need_kind(prompt, Sequence, "a prompt must be text or token ids")
                _need_kind(how, SamplingParams, "params must be SamplingParams")
                ids = self._ids(prompt)
                jobs.append(_Job(index, self._engine.entrance.check(ids, how), how))
        return [_completion(result) for result in self._run(jobs, progress)]

    def chat(
        self,
        dialogues: Sequence[Turn] | Sequence[Sequence[Turn]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool | None = None,
    ) -> list[Completion]:
        """Answer each dialogue, in the frames the model was trained on.

        Args:
            dialogues: one or many; a dialogue is a list of `{"role": ..., "content": ...}` or of
                `Message`, oldest first. What is said is data: control tokens in it are plain text.
            params, progress: as of `generate`.

        Raises:
            InvalidRequest, ContextExceeded: as of `generate`.
        """
        _need_kind(dialogues, Sequence, "a dialogue must be a list of messages")
        single = len(dialogues) > 0 and isinstance(dialogues[0], (Mapping, Message))
        batch = cast("list[Sequence[Turn]]", [dialogues] if single else list(dialogues))
        prompts = []
        for index, dialogue in enumerate(batch):
            with _naming(f"in dialogue {index}"):
                _need_kind(dialogue, Sequence, "a dialogue must be a list of messages")
                messages = [_message(turn) for turn in dialogue]
                if not messages:
                    raise InvalidRequest("a dialogue needs at least one message")
                prompts.append(self.chat_format.encode(messages, self.tokenizer))
        return self.generate(prompts, params, progress=progress)

    def embed(
        self,
        texts: str | Sequence[int] | Sequence[str | Sequence[int]],
        *,
        pooling: PoolingKind = "mean",
        normalize: bool = True,
        progress: bool | None = None,
    ) -> list[Embedding]:
        """The vector of each text, from the final hidden states of the model.

        Args:
            texts: one or many; text or token ids.
            pooling: "mean" of all tokens' states, or the "last" token's.
            normalize: scale vectors to length 1.
            progress: as of `generate`.

        Raises:
            InvalidRequest, ContextExceeded: as of `generate`.
            EngineError: the step that read one of them failed.
        """
        batch = _several(texts, "texts must be text, token ids, or a list of such")
        jobs = deque[_Job]()
        for index, text in enumerate(batch):
            with _naming(f"in text {index}"):
                _need_kind(text, Sequence, "a text must be text or token ids")
                how = Pooling(pooling, normalize=normalize)
                ids = self._engine.entrance.check(self._ids(text), READ, pooling=how)
                jobs.append(_Job(index, ids, READ, how))
        return [Embedding.of(result.outputs[-1]) for result in self._run(jobs, progress)]

    def _ids(self, text: str | Sequence[int]) -> Sequence[int]:
        return self.tokenizer.prompt(text) if isinstance(text, str) else text

    def _run(self, jobs: deque[_Job], progress: bool | None) -> list[_Result]:
        """Feed the queue as it empties and step until everything is finished."""
        done: list[_Result] = []
        running: dict[int, tuple[_Job, int, list[RequestOutput]]] = {}
        requests: list[Request] = []
        bar = ProgressBar(sum(job.params.n for job in jobs), progress)
        try:
            with bar:
                while jobs or running:
                    while jobs and len(running) + jobs[0].params.n <= self._window:
                        job = jobs.popleft()
                        samples = self._submit(job)
                        requests += samples
                        for number, request in enumerate(samples):
                            running[request.id] = (job, number, [])
                    before = len(done)
                    stepped = self._engine.step()
                    for output in stepped:
                        job, number, outputs = running[output.request_id]
                        outputs.append(output)
                        if output.finish is not None:
                            del running[output.request_id]
                            done.append(_Result(job, number, tuple(outputs)))
                    bar.advance(len(done) - before, _tokens(stepped))
        finally:
            if running:  # interrupted: give everything back, so that the engine can be used again
                for request in requests:
                    self._engine.cancel(request)
                self._engine.step()
        return sorted(done, key=lambda result: (result.job.prompt, result.sample))

    def _submit(self, job: _Job) -> list[Request]:
        """Queue all samples of a prompt; with a seed, sample k draws from seed + k."""
        if job.pooling is not None:
            return [self._engine.embed(job.ids, job.pooling)]
        samples: list[Request] = []
        for number in range(job.params.n):
            seed = None if job.params.seed is None else (job.params.seed + number) % 2**63
            params = replace(job.params, seed=seed)
            first = samples[0] if samples else None
            samples.append(self._engine.submit(job.ids, params, sibling=first))
        return samples


@contextmanager
def _naming(what: str) -> Iterator[None]:
    """Note on what is refused which item of a batch it is about."""
    try:
        yield
    except EngineError as error:
        error.add_note(what)
        raise


def _several(
    given: str | Sequence[int] | Sequence[str | Sequence[int]], rule: str
) -> list[str | Sequence[int]]:
    """One text, or one list of token ids, as a list of one; many as they are."""
    _need_kind(given, Sequence, rule)
    single = isinstance(given, str) or (len(given) > 0 and isinstance(given[0], int))
    return cast("list[str | Sequence[int]]", [given] if single else list(given))


def _message(turn: Turn) -> Message:
    if isinstance(turn, Message):
        return turn
    _need_kind(turn, Mapping, "a message must be a Message or a mapping with role and content")
    if set(turn) != {"role", "content"}:
        raise InvalidRequest(f"a message has role and content, not {', '.join(map(str, turn))}")
    role, content = turn["role"], turn["content"]
    if role not in get_args(Role):
        raise InvalidRequest(f"a message's role must be one of {get_args(Role)}, not {role!r}")
    _need_kind(content, str, "a message's content must be text")
    return Message(cast("Role", role), content)


def _tokens(outputs: Sequence[RequestOutput]) -> int:
    """Tokens that a step's outputs stand for: those written, and those of texts read."""
    read = (o.usage.prompt_tokens for o in outputs if o.embedding is not None and o.usage)
    return sum(len(output.token_ids) for output in outputs) + sum(read)


def _need_kind(value: object, kind: type, rule: str) -> None:
    """Scripts are rarely type-checked: say what was expected. Bytes are no token ids."""
    if not isinstance(value, kind) or isinstance(value, (bytes, bytearray)):
        raise InvalidRequest(f"{rule}, not {type(value).__name__}")


def _completion(result: _Result) -> Completion:
    outputs = result.outputs
    last = outputs[-1]
    assert last.finish is not None
    assert last.usage is not None
    reported = [output.logprobs for output in outputs if output.logprobs is not None]
    return Completion(
        result.job.prompt,
        result.sample,
        "".join(output.text for output in outputs),
        tuple(token for output in outputs for token in output.token_ids),
        last.finish,
        last.usage,
        tuple(step for steps in reported for step in steps) if reported else None,
        last.complete,
    )
