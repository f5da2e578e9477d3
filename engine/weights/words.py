"""The part of a Hugging Face folder that gives token ids their meaning; no weights are needed."""

import json
from functools import cached_property
from pathlib import Path
from typing import Any

from engine.errors import ModelError
from engine.tokenizer import Tokenizer


class FolderWords:
    """tokenizer.json and what stands beside it.

    Attributes:
        source: the folder.
        name: what to call the model.
    """

    def __init__(self, folder: Path, name: str | None = None) -> None:
        self.source = folder
        self.name = name or folder.resolve().name

    @cached_property
    def template(self) -> str | None:
        """The Jinja chat template."""
        path = self.source / "chat_template.jinja"
        if path.is_file():
            return path.read_text("utf-8")
        found = self.json("tokenizer_config.json").get("chat_template")
        if isinstance(found, list):  # several by name; the one for plain chat is called default
            found = {entry["name"]: entry["template"] for entry in found}.get("default")
        return found if isinstance(found, str) else None

    def tokenizer(self) -> Tokenizer:
        """The tokenizer.

        Raises:
            ModelError: a file is missing or unreadable.
        """
        fields = self.json("config.json")
        eos = (
            fields.get("eos_token_id"),
            self.json("generation_config.json").get("eos_token_id"),
        )
        ends = [index for ids in eos for index in (ids if isinstance(ids, list) else [ids])]
        bos = fields.get("bos_token_id")
        return Tokenizer.from_folder(
            self.source,
            eos_ids=[index for index in ends if index is not None],
            bos_id=bos if isinstance(bos, int) else None,
        )

    def json(self, file: str) -> dict[str, Any]:
        """Contents of a JSON file of the folder; empty when there is none.

        Raises:
            ModelError: it is no JSON object.
        """
        path = self.source / file
        try:
            found = json.loads(path.read_text("utf-8")) if path.is_file() else {}
        except (OSError, ValueError) as error:
            raise ModelError(f"cannot read {path}: {error}") from error
        if not isinstance(found, dict):
            raise ModelError(f"{path} must hold a JSON object")
        return found
