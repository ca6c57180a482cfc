"""`torchrun --nproc-per-node N -m raddle.run plan.json`: one rank of a plan."""

import sys

from raddle.run.orphans import end_with_parent

if __name__ == "__main__":
    end_with_parent()  # before torch is imported, which takes seconds

    from raddle.run.session import main

    sys.exit(main(sys.argv[1:]))
