"""Reads Hugging Face folders: config.json, safetensors in one file or many, tokenizer.json."""

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from engine.errors import ModelError
from engine.models.hub import read_config
from engine.tokenizer import Tokenizer
from engine.weights.fused import part
from engine.weights.words import FolderWords


class FolderCheckpoint:
    """A model folder; tensors are read when asked for.

    Attributes:
        source: the folder.
        name, config: see `Checkpoint`.
    """

    def __init__(self, folder: Path, name: str | None = None) -> None:
        """Open a folder; raises `ModelError` when it holds no supported model."""
        self.source = folder
        self._words = FolderWords(folder, name)
        self._fields = self._words.json("config.json")
        if not (folder / "config.json").is_file():
            raise ModelError(
                f"{folder} has no config.json; a model folder or a .gguf file is needed"
            )
        self.name = self._words.name
        self.config = read_config(self._fields)
        # Gemma stores how much more than 1 a gain is.
        self._gains_above_one = str(self._fields["model_type"]).startswith("gemma")
        self._files = self._index()
        self._read: set[str] = set()

    @property
    def template(self) -> str | None:
        """See `Checkpoint.template`."""
        return self._words.template

    def tokenizer(self) -> Tokenizer:
        """See `Checkpoint.tokenizer`."""
        return self._words.tokenizer()

    def __contains__(self, name: str) -> bool:
        fused = part(name, self.config)
        return name in self._files or (fused is not None and fused.whole in self._files)

    def tensor(self, name: str) -> torch.Tensor:
        """See `Checkpoint.tensor`."""
        if name in self._files:
            tensor = self._stored(name)
            above_one = self._gains_above_one and name.endswith("norm.weight")
            return tensor + 1 if above_one else tensor
        fused = part(name, self.config)
        if fused is None or fused.whole not in self._files:
            raise ModelError(f"{self.source} has no tensor {name!r}")
        return fused.of(self._stored(fused.whole))

    def unread(self) -> list[str]:
        """See `Checkpoint.unread`."""
        needless = {"lm_head.weight"} if self.config.tied else set()
        left = self._files.keys() - self._read - needless
        return sorted(name for name in left if not name.endswith("rotary_emb.inv_freq"))

    def _stored(self, name: str) -> torch.Tensor:
        """A tensor as it is in its file, in float32."""
        self._read.add(name)
        try:
            with safe_open(self._files[name], framework="pt") as file:
                tensor: torch.Tensor = file.get_tensor(name).to(torch.float32)
                return tensor
        except (OSError, SafetensorError) as error:
            raise ModelError(f"cannot read {name!r} from {self._files[name]}: {error}") from error

    def _index(self) -> dict[str, Path]:
        """Which file holds which tensor."""
        shards = self._words.json("model.safetensors.index.json").get("weight_map")
        if shards:
            missing = sorted(
                {file for file in shards.values() if not (self.source / file).is_file()}
            )
            if missing:
                raise ModelError(f"{self.source} is incomplete, {', '.join(missing)} missing")
            return {name: self.source / file for name, file in shards.items()}
        path = self.source / "model.safetensors"
        if not path.is_file():
            raise ModelError(
                f"{self.source} has no model.safetensors (other formats are not supported)"
            )
        try:
            with safe_open(path, framework="pt") as file:
                return dict.fromkeys(file.keys(), path)
        except (OSError, SafetensorError) as error:
            raise ModelError(f"cannot read {path}: {error}") from error
