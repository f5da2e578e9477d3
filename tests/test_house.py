"""Rules about the house itself: directions, names, and a neighbour with the name of one of ours."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("kernels", "engine", "scenes", "npc", "gameserver")
#: Imports transformers, which asks whether a library called `kernels` is installed, then uses it.
PROBE = """
import kernels, sys
assert kernels.__file__.startswith(sys.argv[1]), kernels.__file__
import transformers
from transformers import LlamaConfig, LlamaForCausalLM
LlamaForCausalLM(LlamaConfig(vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
                             num_attention_heads=1, num_key_value_heads=1))
"""


def _run(*command: str, cwd: Path = ROOT, **environment: str) -> None:
    done = subprocess.run(
        command, cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_imports_point_one_way() -> None:
    _run(str(Path(sys.executable).with_name("lint-imports")), "--no-cache")


def test_version_stays_below_the_one_transformers_would_take_for_its_kernels_library() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    major, minor = (int(part) for part in project["version"].split(".")[:2])
    assert (major, minor) < (0, 16)


def test_our_kernels_package_imports_nothing_by_itself() -> None:
    source = (ROOT / "kernels" / "__init__.py").read_text()
    assert "import" not in source


def test_transformers_can_be_imported_beside_our_kernels_in_a_checkout() -> None:
    _run(sys.executable, "-c", PROBE, str(ROOT))


@pytest.mark.timeout(300)
def test_transformers_can_be_imported_beside_our_installed_wheel(tmp_path: Path) -> None:
    wheels, site = tmp_path / "wheels", tmp_path / "site"
    # From a copy: a build leaves its folders behind, and `build/` of an older tree would slip in.
    source = tmp_path / "source"
    source.mkdir()
    for name in (*PACKAGES, "pyproject.toml", "README.md", "LICENSE"):
        _run("cp", "-r", str(ROOT / name), str(source / name))
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    _run(*pip, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(wheels), str(source))
    (wheel,) = wheels.glob("*.whl")
    _run(*pip, "install", "-q", "--no-deps", "--target", str(site), str(wheel))
    _run(sys.executable, "-c", PROBE, str(site), cwd=tmp_path, PYTHONPATH=str(site))
    for needed in (
        "scenes/packs/gilded_griffin/scene.yaml",
        "scenes/packs/gilded_griffin/npcs/mira.yaml",
        "gameserver/http/static/index.html",
        "gameserver/stores/commit.lua",
    ):
        assert (site / needed).is_file(), needed


def test_every_link_in_the_documents_leads_somewhere() -> None:
    documents = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    for document in documents:
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text("utf-8")):
            assert (document.parent / target).exists(), f"{document.name}: {target}"
