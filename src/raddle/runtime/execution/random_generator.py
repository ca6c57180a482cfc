"""Sets torch's random generator for the native dropout of a call, and restores it afterwards.

A fused attention kernel draws from the default generator of its device. The generator is set just before a
call (a segment in one micro-batch), from the seed of the micro-batch and the call's random stream, a text
that names the attention and its tile. So a recomputed forward draws the same numbers again, as does every
run with the same plan and seed. Autograd saves what the backward needs.

The state of a generator is in the memory of the CPU, also that of a GPU's generator: setting it does not
wait for the GPU. It is set outside of compiled functions, because they cannot set it.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

# The generators belong to the process. Ranks that are threads of it draw one after the other.
_LOCK = threading.Lock()


def generator_seed(seed: int, stream: str) -> int:
    """Returns the generator's seed for a call, from the micro-batch's seed and `Call.random_stream`."""
    digest = hashlib.blake2b(f"{seed} {stream}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


@contextmanager
def seeded_generator(place: torch.device, seed: int) -> Iterator[None]:
    """Sets the default generator of a device in a `with` block; then it continues as before the block."""
    with _LOCK:
        if place.type == "cuda":
            with torch.cuda.device(place):
                state = torch.cuda.get_rng_state()
                torch.cuda.manual_seed(seed)
                try:
                    yield
                finally:
                    torch.cuda.set_rng_state(state)
        else:
            state = torch.get_rng_state()
            torch.default_generator.manual_seed(seed)
            try:
                yield
            finally:
                torch.set_rng_state(state)
