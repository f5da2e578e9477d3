"""From a model's name to a model that can speak."""

import importlib.util
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch

from engine.chat import ChatFormat
from engine.config import Quantization
from engine.device.choose import DeviceSetting, choose_device
from engine.errors import ModelError
from engine.models.config import ModelConfig
from engine.models.decoder import Decoder
from engine.tokenizer import Tokenizer
from engine.weights.checkpoint import Checkpoint
from engine.weights.fetch import Progress, fetch_model
from engine.weights.gguf import GGUFCheckpoint
from engine.weights.safetensors import FolderCheckpoint
from engine.weights.words import FolderWords
from kernels.cpu import int8

if TYPE_CHECKING:
    from engine.models.device_decoder import DeviceDecoder
    from engine.native.decoder import NativeDecoder

#: See `EngineConfig.numerics`.
AnyNumerics = Literal["exact", "bf16", "fast", "int4"]

#: Files of a model on the hub that are not weights.
_WORDS = ("*.json", "*.jinja")

_log = logging.getLogger("troupe.engine")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What gives token ids their meaning: enough to talk, without a forward pass."""

    name: str
    tokenizer: Tokenizer
    chat: ChatFormat


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in memory."""

    name: str
    config: ModelConfig
    decoder: "Decoder | DeviceDecoder | NativeDecoder"
    tokenizer: Tokenizer
    chat: ChatFormat


def load_model(
    spec: str,
    *,
    data_dir: Path,
    numerics: AnyNumerics = "fast",
    progress: Progress | None = None,
    threads: int | None = None,
    device: DeviceSetting = "cpu",
    quantization: Quantization | None = None,
    max_len: int | None = None,
    on_shape: Callable[[ModelConfig], None] | None = None,
) -> LoadedModel:
    """Load a model.

    Args:
        spec: "default", a .gguf file, a Hugging Face folder, or a hub id ("org/name").
        data_dir: where what is fetched is kept.
        numerics: see `EngineConfig.numerics`.
        progress: told the stage ("download", "unpack", "weights", "compile"), how much is done, and
            of how much.
        threads: of the forward pass; None leaves torch's number.
        device: where the model is to run.
        quantization: see `EngineConfig.quantization`.
        max_len: most tokens of a context, if less than the model can have.
        on_shape: told what model it is before its weights are read; may refuse by raising.

    Raises:
        ModelError: it cannot be found, fetched or understood; the message says what to do.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    checkpoint = open_checkpoint(spec, data_dir=data_dir, progress=progress)
    checkpoint.config = checkpoint.config.within(max_len)
    if on_shape is not None:
        on_shape(checkpoint.config)
    vocabulary = _vocabulary(checkpoint)
    where = choose_device(device)
    decoder: Decoder | DeviceDecoder | NativeDecoder
    if where.type == "cpu":
        if quantization is not None:
            raise ModelError(
                f"quantization {quantization!r} is for a GPU; on a CPU numerics 'fast' and 'int4' "
                "make weights smaller: leave quantization out"
            )
        decoder = _host_decoder(checkpoint, numerics, progress, threads)
    else:
        decoder = _device_decoder(checkpoint, numerics, where, quantization, progress)
    if unread := checkpoint.unread():
        raise ModelError(
            f"{checkpoint.source} has tensors that models of its type do not have, or that are not "
            f"supported: {', '.join(unread[:4])}{', …' if len(unread) > 4 else ''}"
        )
    return LoadedModel(
        vocabulary.name, checkpoint.config, decoder, vocabulary.tokenizer, vocabulary.chat
    )


def _device_decoder(
    checkpoint: Checkpoint,
    numerics: AnyNumerics,
    device: torch.device,
    quantization: Quantization | None,
    progress: Progress | None,
) -> "DeviceDecoder":
    if numerics == "int4":
        raise ModelError("numerics 'int4' is for the CPU: set another, or device to 'cpu'")
    # Imported here: it needs Triton, which need not be installed.
    from engine.models.device_decoder import DeviceDecoder

    dtype = torch.float32 if numerics == "exact" else torch.bfloat16
    return DeviceDecoder.load(checkpoint, dtype, device, progress, quantization=quantization)


def _host_decoder(
    checkpoint: Checkpoint, numerics: AnyNumerics, progress: Progress | None, threads: int | None
) -> "Decoder | NativeDecoder":
    """Compiled for the machine where the numerics, the model and the machine allow it."""
    if numerics == "exact":
        return Decoder.load(checkpoint, numerics, progress)
    why = "numba is not installed"
    if importlib.util.find_spec("numba"):
        # Imported here: it takes a second, and only this needs it.
        from engine.native.decoder import NativeDecoder

        if not (why := NativeDecoder.refuses(checkpoint, numerics)):
            return NativeDecoder.load(checkpoint, numerics, progress, threads)
    if numerics == "int4":
        raise ModelError(f"numerics 'int4' cannot be had here: {why}; set 'fast'")
    _log.info("not compiled for this machine, which would be faster: %s", why)
    if numerics == "fast" and not int8.available():
        _log.info("this processor has no 8-bit products worth using: computing in float32")
        numerics = "exact"
    return Decoder.load(checkpoint, numerics, progress)


def load_vocabulary(spec: str, *, data_dir: Path, progress: Progress | None = None) -> Vocabulary:
    """The tokenizer and chat format of a model alone; arguments and errors as in `load_model`. Of a
    folder or a hub id no weights are needed.
    """
    path = Path(spec).expanduser()
    if spec == "default" or path.is_file():
        return _vocabulary(open_checkpoint(spec, data_dir=data_dir, progress=progress))
    if not path.is_dir():
        path = _fetch_from_hub(spec, data_dir, _WORDS)
    return _vocabulary(FolderWords(path, name=spec))


def open_checkpoint(spec: str, *, data_dir: Path, progress: Progress | None = None) -> Checkpoint:
    """Find a model on disk, fetching it first where it is not; see `load_model`."""
    if spec == "default":
        return GGUFCheckpoint(fetch_model(data_dir, progress))
    path = Path(spec).expanduser()
    if path.is_file():
        return GGUFCheckpoint(path)
    if path.is_dir():
        return FolderCheckpoint(path)
    return FolderCheckpoint(_fetch_from_hub(spec, data_dir, (*_WORDS, "*.safetensors")), name=spec)


def _fetch_from_hub(spec: str, data_dir: Path, files: Sequence[str]) -> Path:
    """Those files of a model on the hub, fetched where they are not here yet."""
    if spec.count("/") != 1 or spec.startswith((".", "/", "~")) or spec.endswith(".gguf"):
        raise ModelError(
            f"there is no model {spec!r}: give 'default', a .gguf file, a folder with config.json "
            "and safetensors, or a hub id like org/name"
        )
    # Imported here: it takes longer to import than the default model to open.
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(spec, cache_dir=data_dir / "hub", allow_patterns=list(files)))
    except Exception as error:  # the hub client raises what its HTTP library raises
        raise ModelError(
            f"cannot fetch {spec!r} from the model hub ({type(error).__name__}): check the name "
            "and the connection, or download the model elsewhere and give its folder or .gguf file"
        ) from error


def _vocabulary(checkpoint: Checkpoint | FolderWords) -> Vocabulary:
    tokenizer = checkpoint.tokenizer()
    ends = sorted(tokenizer.eos_ids)
    chat = ChatFormat.from_template(
        checkpoint.template,
        tokenizer,
        bos=tokenizer.token(tokenizer.bos_id),
        eos=tokenizer.token(ends[0] if ends else None),
    )
    # The mark that closes a reply ends it, also where the file names only the end of a document.
    tokenizer.eos_ids |= tokenizer.special_ids.intersection(chat.assistant.close[:1])
    return Vocabulary(checkpoint.name, tokenizer, chat)
