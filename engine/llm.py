"""The engine's public face for scripts: many prompts in, their continuations out."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from engine.build import build_engine
from engine.config import EngineConfig
from engine.errors import EngineError, InvalidRequest
from engine.outputs import FinishReason, RequestOutput, Usage
from engine.params import SamplingParams
from engine.request import Request
from engine.weights.load import load_model


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
    """One checked prompt of a batch."""

    prompt: int
    ids: tuple[int, ...]
    params: SamplingParams


class LLM:
    """A model in this process, for scripts: `LLM("default").generate("Once upon a time")`."""

    def __init__(
        self,
        model: str = "default",
        config: EngineConfig | None = None,
        *,
        data_dir: Path | str = ".cache/troupe",
    ) -> None:
        """Load `model`: "default", a GGUF file, a Hugging Face folder or a hub id.

        Raises:
            ModelError: it cannot be found, fetched or understood; the message says what to do.
            OutOfMemory: the KV cache does not fit.
        """
        config = config or EngineConfig()
        loaded = load_model(
            model,
            data_dir=Path(data_dir),
            numerics=config.numerics,
            device=config.device,
            max_len=config.max_model_len,
        )
        self._engine = build_engine(loaded, config)
        self._window = config.max_waiting
        self.tokenizer = loaded.tokenizer
        self.chat = loaded.chat

    def generate(
        self,
        prompts: str | Sequence[int] | Sequence[str | Sequence[int]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[Completion]:
        """Continue each prompt; all of them run together.

        Results come in the order of the prompts, with `n` samples one after another.

        Args:
            prompts: one prompt or many; text (control tokens in it are ordinary text) or token ids.
            params: one for all, or one each.

        Raises:
            InvalidRequest, ContextExceeded: one of them cannot be run; the message says which.
                Nothing ran.
        """
        _need_kind(prompts, Sequence, "prompts must be text, token ids, or a list of such")
        single = isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], int))
        batch = cast("list[str | Sequence[int]]", [prompts] if single else list(prompts))
        if params is None or isinstance(params, SamplingParams):
            each = [params or SamplingParams()] * len(batch)
        else:
            _need_kind(params, Sequence, "params must be SamplingParams, or a list of them")
            each = list(params)
        if len(each) != len(batch):
            raise InvalidRequest(f"{len(batch)} prompts but {len(each)} sampling params")
        jobs = deque[_Job]()
        for index, (prompt, how) in enumerate(zip(batch, each, strict=True)):
            try:
                _need_kind(prompt, Sequence, "a prompt must be text or token ids")
                _need_kind(how, SamplingParams, "params must be SamplingParams")
                ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
                jobs.append(_Job(index, self._engine.check_request(ids, how), how))
            except EngineError as error:
                error.add_note(f"in prompt {index}")
                raise
        return self._run(jobs)

    def _run(self, jobs: deque[_Job]) -> list[Completion]:
        """Feed the queue as it empties and step until everything is finished."""
        done: list[Completion] = []
        running: dict[int, tuple[_Job, int, list[RequestOutput]]] = {}
        requests: list[Request] = []
        try:
            while jobs or running:
                while jobs and len(running) + jobs[0].params.n <= self._window:
                    job = jobs.popleft()
                    samples = self._submit(job)
                    requests += samples
                    for number, request in enumerate(samples):
                        running[request.id] = (job, number, [])
                for output in self._engine.step():
                    job, number, outputs = running[output.request_id]
                    outputs.append(output)
                    if output.finish is not None:
                        del running[output.request_id]
                        done.append(_completion(job.prompt, number, outputs))
        finally:
            if running:  # interrupted: give everything back, so that the engine can be used again
                for request in requests:
                    self._engine.cancel(request)
                self._engine.step()
        return sorted(done, key=lambda completion: (completion.prompt, completion.sample))

    def _submit(self, job: _Job) -> list[Request]:
        """Queue all samples of a prompt; with a seed, sample k draws from seed + k."""
        samples: list[Request] = []
        for number in range(job.params.n):
            seed = None if job.params.seed is None else (job.params.seed + number) % 2**63
            params = replace(job.params, seed=seed)
            first = samples[0] if samples else None
            samples.append(self._engine.submit(job.ids, params, sibling=first))
        return samples


def _need_kind(value: object, kind: type, rule: str) -> None:
    """Scripts are rarely type-checked: say what was expected. Bytes are no token ids."""
    if not isinstance(value, kind) or isinstance(value, (bytes, bytearray)):
        raise InvalidRequest(f"{rule}, not {type(value).__name__}")


def _completion(prompt: int, sample: int, outputs: list[RequestOutput]) -> Completion:
    last = outputs[-1]
    assert last.finish is not None
    assert last.usage is not None
    reported = [output.logprobs for output in outputs if output.logprobs is not None]
    return Completion(
        prompt,
        sample,
        "".join(output.text for output in outputs),
        tuple(token for output in outputs for token in output.token_ids),
        last.finish,
        last.usage,
        tuple(step for steps in reported for step in steps) if reported else None,
        last.complete,
    )
