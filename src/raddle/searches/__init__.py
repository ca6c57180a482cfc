"""Searches: the methods that plan how a model is trained, from named baselines to searches.

A method takes a graph and a cluster and gives every operator its tiles: the parts of its work, each with a
device. Each search method has a folder: optcnn, flexflow, pipeline, hypergraph, auto; the named
baselines share the folder baselines, and plans that experts write by hand the folder experts.

method, registry, aliases  the base class of methods, all methods by name, and other names of them
settings, pins             the inputs of a search; the splits that the user has fixed
planning, comparison       make the plan of one method; make and compare those of several
groups, configurations     operators that are split together; their numbers of parts and their devices
grids, plan_space          grids of tiles of one operator; all plans that a search may visit
starts                     plans from which searches start
predict, purposes          predicted metrics of a plan; its bytes by purpose
bounds                     the step time that no plan can beat
single_step, ranking       time of a single step; sorting plans by it
operator_times, nodes      seconds of whole operators; devices of a node
choose_sync, slice_order   how parameters are synchronised, and the order of their slices
recomputation              blocks for activation checkpointing
attempts, stopwatch        failed candidates; the seconds that count as searching
profile_methods            measures operators on this machine
jit_warmup                 JIT compiles numba functions before a search
explanation                explains why a plan is as fast as it is
"""
