"""How to get libraries that not everybody needs."""

import sys


def how_to_install(what: str) -> str:
    """The command that installs `what`, as pip names it, for the Python that runs Troupe: another
    one's pip would install it where nobody looks."""
    return f"{sys.executable} -m pip install '{what}'"
