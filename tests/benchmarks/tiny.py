"""A tiny random model as the engine loads one."""

from pathlib import Path
from typing import Any

from engine.models.decoder import Decoder
from engine.weights.load import LoadedModel
from engine.weights.safetensors import FolderCheckpoint
from tests.engine.families import build
from tests.engine.speech import byte_tokenizer


def load_tiny(folder: Path) -> tuple[LoadedModel, Any]:
    """The model, and what transformers makes of the same weights."""
    reference = build("llama", folder)
    checkpoint = FolderCheckpoint(folder)
    decoder = Decoder.load(checkpoint, "exact")
    model = LoadedModel("tiny", checkpoint.config, decoder, byte_tokenizer(), None)  # type: ignore[arg-type]
    return model, reference
