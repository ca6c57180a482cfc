"""`torchrun --nproc-per-node N -m raddle.run plan.json`: one rank of a plan."""

import sys

from raddle.run.session import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
