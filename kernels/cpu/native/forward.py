"""A whole forward pass as one compiled function, called by each thread of a team.

Activations are float32 between the products, 8-bit or bfloat16 inside; keys, values and attention
weights are bfloat16. A row's logits are the same to the bit in any company and however its prompt
was cut into steps.
"""

from kernels.cpu.native.compiled import inlined, kept
from kernels.cpu.native.phases import (
    PIECES,
    activate_rows,
    attend_rows,
    divide_rows,
    embed,
    enter_rows,
    multiply,
    norm_rows,
    norm_wanted,
)
from kernels.cpu.native.tables import ATTENTION, HEAD, LAYER_PHASES, PRODUCTS, ROTATE, ROWS
from kernels.cpu.native.team import ticks


@inlined
def _spent(room, thread, part, since):
    """Book the time since `since` to one of `PARTS`, as the first thread saw it; returns now."""
    now = ticks()
    if thread == 0:
        room.times[part] += now - since
    return now


@kept
def forward(weights, shape, batch, keys, values, room, thread, threads):
    """One thread's part of a step; `room.logits` holds the result when all have returned.

    keys, values: bfloat16 bits [layers, kv_heads, blocks of 16, 16 · dim].
    """
    rows = len(batch.tokens)
    line = room.line[thread]
    step = max(1, rows // (PIECES * threads))
    t = ticks()
    embed(weights, shape, batch, room, 0, step)
    phase = 1
    for layer in range(keys.shape[0]):
        k, v = keys[layer], values[layer]
        norm_rows(weights.attention_norm[layer], shape, batch, room, phase, step, line)
        t = _spent(room, thread, ROWS, t)
        multiply(room, threads, phase + 1, weights.qkv, layer, rows, room.wide, 0)
        t = _spent(room, thread, PRODUCTS, t)
        enter_rows(weights, shape, batch, k, v, room, layer, phase + 2, step)
        t = _spent(room, thread, ROTATE, t)
        if batch.silent and layer == keys.shape[0] - 1:
            return
        attend_rows(shape, weights.windows[layer], batch, k, v, room, phase + 3, thread)
        t = _spent(room, thread, ATTENTION, t)
        divide_rows(shape, batch, room, phase + 4, step, line)
        t = _spent(room, thread, ROWS, t)
        multiply(room, threads, phase + 5, weights.output, layer, rows, room.x, 1)
        t = _spent(room, thread, PRODUCTS, t)
        norm_rows(weights.ffn_norm[layer], shape, batch, room, phase + 6, step, line)
        t = _spent(room, thread, ROWS, t)
        multiply(room, threads, phase + 7, weights.gate_up, layer, rows, room.wide, 0)
        t = _spent(room, thread, PRODUCTS, t)
        activate_rows(shape, batch, room, phase + 8, step, line)
        t = _spent(room, thread, ROWS, t)
        multiply(room, threads, phase + 9, weights.down, layer, rows, room.x, 1)
        t = _spent(room, thread, PRODUCTS, t)
        phase += LAYER_PHASES
    samples = len(batch.wanted)
    if samples:
        norm_wanted(weights, shape, batch, room, phase, line)
        multiply(room, threads, phase + 1, weights.head, 0, samples, room.logits, 0)
        _spent(room, thread, HEAD, t)
