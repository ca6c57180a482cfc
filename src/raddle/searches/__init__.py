"""Searches: methods that give every operator its tiles, from the named baselines on.

method, registry      what a method is, and every method by name; a folder a method:
                      baselines, optcnn, flexflow, pipeline, hypergraph, auto
settings, pins        what is asked for                    planning, comparing   plans of methods, and rows
groups                operators that are split together    configurations        their parts and devices
planspace, placing    tiles of a whole plan                starts                where searches begin
figures, purposes     what is said of a simulated plan     bounds                what no plan goes below
stepping, ranking     the time of one step                 work                  seconds of whole operators
syncs, order          how parameters are synchronised      recomputing           what is computed again
attempts, stopwatch   failures and seconds of a search     measuring, compiling  what a machine does once
explanation           why a plan is as fast as it is
"""
