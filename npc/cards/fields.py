"""Fields of somebody else's JSON, each of which may be missing or of a wrong type."""

from collections.abc import Mapping
from typing import Any


def text(fields: Mapping[str, Any], name: str) -> str:
    """A text; "" if it is missing or something else."""
    value = fields.get(name)
    return value if isinstance(value, str) else ""


def texts(fields: Mapping[str, Any], name: str) -> list[str]:
    """The texts of a list; of a text with commas, its parts."""
    value = fields.get(name)
    if isinstance(value, str):
        value = value.split(",")
    if not isinstance(value, list):
        return []
    return [item.strip() for item in value if isinstance(item, str) and item.strip()]


def mapping(fields: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A mapping; {} if it is missing or something else."""
    value = fields.get(name)
    return value if isinstance(value, dict) else {}


def flag(fields: Mapping[str, Any], name: str, *, default: bool) -> bool:
    """A flag; the default if it is missing or something else."""
    value = fields.get(name)
    return value if isinstance(value, bool) else default


def number(fields: Mapping[str, Any], name: str, default: int, most: int = 1_000_000) -> int:
    """A whole number, brought into ±`most`; the default if it is missing or something else."""
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return default
    return int(max(-most, min(most, value)))
