"""What the interpreter lets pass, the compiler may not: drawing compiles for an H200, on none."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed: pip install troupe-npc[gpu]")

_COMPILE = """
import sys, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from kernels.gpu.sampling import _FEW, _PIVOTS, _TILE, _sample

dtype, vocab = sys.argv[1], int(sys.argv[2])
constants = dict(VOCAB=vocab, TILE=_TILE, PIVOTS=_PIVOTS, FEW=_FEW)
constants |= dict(NARROW=dtype == "bf16", EARLY=True)
kinds = dict.fromkeys(_sample.arg_names, "*i32") | dict.fromkeys(constants, "constexpr")
kinds |= {"logits": "*" + dtype, "changed_logits": "*fp32", "listed_scores": "*fp32"}
kinds |= {"seen_stride": "i32", "allowed_stride": "i32", "records_stride": "i32"}
source = ASTSource(_sample, kinds, constexprs=constants)
options = {"num_warps": 8, "launch_pdl": True}
kernel = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
assert kernel.asm["cubin"]
"""


@pytest.mark.parametrize(("dtype", "vocab"), [("bf16", 128256), ("fp32", 49152)])
def test_drawing_compiles(dtype: str, vocab: int, tmp_path: Path) -> None:
    compiled = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", _COMPILE, dtype, str(vocab)],
        env={**compiled, "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
