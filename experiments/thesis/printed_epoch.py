"""Copies the numbers of the thesis's Table 5.14: bytes sent in an epoch of 64,000 images.

The thesis is that of B. Eserol (docs/papers.md). Its Table 5.15 is in lab_table.py.
"""

from __future__ import annotations

EPOCH_IMAGES = 64_000
EPOCH_BATCHES = (16, 32, 64)
# In what the thesis calls GB. Data parallelism, by (parts, batch): bytes. The hypergraph's, by parts:
# elements, the same at every batch.
EPOCH_DATA = {
    (2, 16): 4123, (2, 32): 2061, (2, 64): 1030,
    (4, 16): 12370, (4, 32): 6185, (4, 64): 3092,
    (8, 16): 28863, (8, 32): 14431, (8, 64): 7215,
}  # fmt: skip
EPOCH_HYPERGRAPH = {2: 107, 4: 239, 8: 1167}
EPOCH_SAVED = 0.93315  # share of data parallelism's bytes that the hypergraph saves, on average
