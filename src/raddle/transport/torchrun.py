"""Runs torchrun so that it and its ranks end when the process that started it has ended.

    python -m raddle.transport.torchrun --standalone --nproc-per-node 2 script.py

In all other respects it is torchrun, with the same arguments.
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
