"""What raddle offers to its command line, to experiments and to scripts: a module a concern.

loading          models, plans and profiles by name
models           graphs, and workloads of the zoo           networks      the zoo's modules and losses
clusters         devices and links                          probing       what this machine can do
plans            plans and their files                      schedules     orders of a pipeline's actions
planning         plans by name of a method                  searching     what searches are made of
partitioning     filters and channels as hypergraphs        compiling     what is compiled once on a machine
costs            seconds of operators                       programs      what a plan is lowered to
simulating       timelines of programs, and their figures   explaining    why a plan is as fast as it is
running          training by a plan                         launching     the torchrun line of a run
verifying        a plan against the plain module            transports    messages between ranks
defaults         what verbs and the live page share         offering      what the live page offers
lab              hosts on a shaped network                  results       what an experiment has found

Each imports what it offers, torch and numba too, so a verb imports them when it runs.
"""
