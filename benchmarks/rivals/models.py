"""The default model in the formats that other engines read."""

import subprocess
from pathlib import Path


def as_gguf(source: Path, kind: str, server: Path, folder: Path) -> Path:
    """Another quantisation, made once by the `llama-quantize` that lies beside llama-server."""
    target = folder / f"{source.stem}.{kind}.gguf"
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        tool = server.with_name("llama-quantize")
        _run([str(tool), "--allow-requantize", str(source), str(target), kind, "2"])
    return target


def as_folder(source: Path, folder: Path) -> Path:
    """A Hugging Face folder with bfloat16 weights, made once from a GGUF file."""
    if not (folder / "config.json").exists():
        # Imported here: it takes seconds, and only the first run needs it.
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

        model = AutoModelForCausalLM.from_pretrained(
            source.parent,
            gguf_file=source.name,
            dtype=torch.bfloat16,
            quantization_config=GgufConfig(dequantize=True),
        )
        model.save_pretrained(folder)
        AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(folder)
    return folder


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{command[0]} failed with {done.returncode}:\n{done.stderr[-2000:]}")
