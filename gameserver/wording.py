"""What characters people may write into lines and names."""

import re

from gameserver.protocol import Code, Refusal

# Control characters other than tab and line feed, the marks that reorder text, and invisible
# separators: nothing a player can mean, much that can deceive other players, prompts and logs.
_DROPPED = re.compile(
    "[\x01-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u2028\u2029\ufeff\ufff9-\ufffb]"
)


def clean_line(text: str, limit: int, field: str = "text") -> str:
    """A line as it may reach prompts, logs and other players.

    Args:
        text: what the client sent; surrogates are already excluded.
        limit: most characters.

    Raises:
        Refusal: `too_large`, or `bad_field` if a NUL is in it or nothing is left.
    """
    if len(text) > limit:
        raise Refusal(Code.TOO_LARGE, f"{field} is too long", limit=limit, actual=len(text))
    if "\0" in text:
        raise Refusal(Code.BAD_FIELD, f"{field} contains NUL", unreadable=True)
    cleaned = _DROPPED.sub("", text)
    if not cleaned.strip():
        raise Refusal(Code.BAD_FIELD, f"{field} is empty")
    return cleaned


def clean_name(name: str, limit: int) -> str:
    """A display name on one line, cut at `limit` characters; errors as for `clean_line`."""
    return " ".join(clean_line(name, len(name), "name").split())[:limit].rstrip()
