"""How the threads of a forward pass wait for each other. Imported before torch, which reads it
then.

Threads of an OpenMP team spin at the end of every operation until the last one is done. That saves
microseconds on an idle machine, but whenever another process takes one of the cores, the others
burn theirs until it comes back: with one busy neighbour on two cores a step took 3,100 ms instead
of 120. A game server has neighbours, its own event loop among them, so threads sleep after a short
spin.
"""

import os

#: Spins before a thread sleeps; some microseconds.
_SPINS = "1000"

# There is no other way to tell GNU's OpenMP. A value set by the user stands.
os.environ.setdefault("GOMP_SPINCOUNT", _SPINS)
