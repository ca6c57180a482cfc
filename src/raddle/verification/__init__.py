"""Verifies plans: compares a run with serial training by plain PyTorch, and its bytes with the simulator's.

verify_plan.py       the function `verify`, which the command `raddle verify` calls
twin.py              the same training job in float64 (precision.py), so that rounding does not hide errors
plain_training.py    the reference: the unmodified module trained serially, with the random numbers and the
                     batch-norm statistics of the plan (substitutes.py, local_statistics.py,
                     replica_buffers.py)
launch.py, rank.py   starts the ranks
compare_rank.py      trains one rank and compares it with the reference
serial_replay.py     the reference for asynchronous pipelines, whose steps overlap
traffic.py           counts the bytes sent in three ways: by the program, the simulator and the ranks
"""
