"""The functions of raddle for its command line, experiments and scripts: one module for each subject.

A verb is a sub-command of the command line, such as `raddle plan`.

loading          models, plans and profiles by name
models           graphs, and workloads of the zoo           networks      the zoo's modules and losses
clusters         devices and links                          probing       measuring this machine
calibrating      fitting a cluster to measured throughputs
plans            plans and their files                      schedules     pipeline schedules
graphs           the graph of a module, a name or a graph   plan_result   plans with graph and prediction
modules          the graph of a user's module
planning         making a plan with a named method          searching     building blocks of searches
comparing        the plans of several methods               reporting     the page of results
capacity         the largest batch that fits
partitioning     filters and channels as hypergraphs        jit_warmup    functions that numba compiles
costs            seconds of operators                       programs      instructions of a plan
simulating       timelines of programs, and their metrics   explaining    why a plan is fast or slow
training         a trainer, by a plan or without one        candidates    plans timed before training
plan_for_job     the plan of a job that names none
running          training with a plan                       launching     the torchrun command of a run
verifying        a plan against the plain module            transports    messages between ranks
defaults         defaults of verbs and the live page        live_page     data of the page of `raddle serve`
lab              hosts emulated on one machine              results       results of experiments

These modules import torch and numba, so each verb of the command line imports them only when it runs.
"""
