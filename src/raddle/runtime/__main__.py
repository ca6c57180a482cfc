"""Runs one rank of a plan file: `torchrun --nproc-per-node N -m raddle.runtime plan.json`."""

import sys

from raddle.transport.orphans import end_with_parent

if __name__ == "__main__":
    end_with_parent()  # before torch is imported, which takes seconds

    from raddle.runtime.session import main

    sys.exit(main(sys.argv[1:]))
