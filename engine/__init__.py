"""The inference engine: paged attention, continuous batching, shared prefixes.

It knows tokens, blocks, rows and integer priority classes, nothing about games.

    from engine import LLM, SamplingParams
    print(LLM("default").generate("Once upon a time", SamplingParams(max_tokens=32))[0].text)
"""

import engine._threads  # noqa: F401 - must come before anything that imports torch
from engine.api import AsyncEngine
from engine.config import EngineConfig
from engine.embedding.sentence import SentenceModel
from engine.grammar import Grammar
from engine.llm import LLM, Completion
from engine.outputs import Embedding, RequestOutput, Usage
from engine.params import SamplingParams
from engine.prefixes import Prefix
from engine.ticket import Ticket

__all__ = [
    "LLM",
    "AsyncEngine",
    "Completion",
    "Embedding",
    "EngineConfig",
    "Grammar",
    "Prefix",
    "RequestOutput",
    "SamplingParams",
    "SentenceModel",
    "Ticket",
    "Usage",
]
