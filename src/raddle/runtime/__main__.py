"""Runs one rank of a plan file: `torchrun --nproc-per-node N -m raddle.runtime plan.json`."""

import sys

from raddle.transport.orphans import end_with_parent

if __name__ == "__main__":
    # From now on this rank ends if raddle or torchrun, which started it, ends. This comes before the import
    # of torch, which takes seconds.
    end_with_parent()

    from raddle.runtime.session import main

    sys.exit(main(sys.argv[1:]))
