"""torchrun that ends with the process that started it, and its ranks with it.

    python -m raddle.transport.torchrun --standalone --nproc-per-node 2 script.py

It is torchrun in everything else; the words are the same.
"""

from __future__ import annotations

import os

from raddle.transport.orphans import end_with_parent, starter_env


def main() -> None:
    end_with_parent()
    os.environ.update(starter_env())  # for its ranks
    from torch.distributed.run import main as torchrun

    torchrun()


if __name__ == "__main__":
    main()
