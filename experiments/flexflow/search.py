"""Times the search next to the paper's times, and estimates what delta simulation could save.

This is the part `search` of `raddle reproduce flexflow`. The paper is FlexFlow (Jia et al., arXiv
1807.05358).

Delta simulation is FlexFlow's: after a move (a group of operators gets another split or other
devices), it simulates only the tasks that the move affects.
"""

from __future__ import annotations

from experiments.experiment import RunOptions
from experiments.flexflow.cases import case, experiment_size
from experiments.flexflow.proposal_times import ProposalTimes, time_proposals
from experiments.simulate_methods import simulate_method
from raddle.api.results import Cell, Column, Section, Table

TITLE = "Seconds of the search"
# Network -> GPUs -> seconds of the paper's search with delta simulation.
PRINTED = {
    "alexnet": {4: 0.04, 16: 0.48, 64: 5.9}, "resnet101": {4: 0.4, 16: 7.3, 64: 158.0},
    "inception_v3": {4: 4.1, 16: 77.0, 64: 1278.0}, "rnntc": {4: 7.5, 16: 170.0, 64: 1489.0},
    "rnnlm": {4: 9.2, 16: 121.0, 64: 969.0}, "nmt": {4: 16.0, 16: 328.0, 64: 2190.0},
}  # fmt: skip
PRINTED_DELTA = "2.2–6.9"  # times faster than full simulation
# model, GPUs, proposals (random moves that a Markov chain accepts or rejects)
QUICK_CHAINS = (("inception_v3", 4, 60), ("rnntc", 4, 40))
CHAINS = (("inception_v3", 4, 200), ("inception_v3", 16, 200), ("nmt", 4, 100), ("nmt", 16, 100))


def search(options: RunOptions) -> Section:
    """Runs the part; options.report shows progress: what is done now, and the fraction finished."""
    seconds = _search_table(options)
    chains = QUICK_CHAINS if options.quick else CHAINS
    measured_chains = []
    for number, (model, count, proposals) in enumerate(chains):
        options.report(f"proposals, {model} on {count}", (1 + number / len(chains)) / 2)
        measured_chains.append((model, count, time_proposals(case(model, count), proposals)))
    text = f"{seconds_text(seconds)}\n\n{_chains_text([times for _, _, times in measured_chains])}"
    return Section(TITLE, text, [seconds, _chain_table(measured_chains)])


def _search_table(options: RunOptions) -> Table:
    """Times the searches. Those that the part `throughput` has already run are taken from its cache."""
    size = experiment_size(options)
    rows: list[list[Cell]] = []
    for number, model in enumerate(size.models):
        for count in size.gpu_counts:
            options.report(f"{model} on {count}", number / len(size.models) / 2)
            simulated = simulate_method(case(model, count), "flexflow", "allreduce", size.budget)
            search_numbers = (
                (simulated.search_s, simulated.proposals, simulated.improved_s)
                if simulated
                else (None,) * 3
            )
            rows.append([model, count, *search_numbers, PRINTED[model][count]])
    # Column: name, source of its numbers ("counted": from a plan alone), digits after the point
    columns = (
        Column("network"), Column("GPUs"), Column("seconds in all", "measured"),
        Column("proposals", "counted"), Column("last improvement, s of the chains", "measured"),
        Column("in the paper, s", "printed"),
    )  # fmt: skip
    note = (
        f"One core of this machine, K80 in nodes of 4, all-reduce. The chains are stopped after "
        f"{size.budget:g} s; before them, OptCNN's optima and experts' plans are made and simulated. The "
        "paper's search ends when nothing has improved for half of its time."
    )
    return Table("Searches", columns, rows, note)


def seconds_text(seconds: Table) -> str:
    """Returns a sentence that says how many searches are faster than the paper's.

    seconds: the table of searches.
    """
    both = [(row[2], row[5]) for row in seconds.rows]  # seconds here, and in the paper
    pairs = [(a, b) for a, b in both if isinstance(a, float) and isinstance(b, float)]
    longer = sum(a > b for a, b in pairs)
    return f"{len(pairs) - longer} of {len(pairs)} searches take less than the paper's, {longer} longer."


def _chain_table(measured_chains: list[tuple[str, int, ProposalTimes]]) -> Table:
    """Returns a table of proposal times; measured_chains: (model, number of GPUs, times) of each case."""
    columns = (
        Column("network"), Column("GPUs"), Column("tasks", "counted"),
        Column("proposals a second", "measured"), Column("simulated in full", "measured"),
        Column("times as fast", "measured"), Column("delta in the paper, times as fast", "printed"),
        Column("tasks changed by a move, %", "counted"),
        Column("an ideal delta, ms", "measured"), Column("shortened, ms", "measured"),
    )  # fmt: skip
    rows: list[list[Cell]] = [
        [
            model, count, times.tasks, times.shortened_rate, times.full_rate,
            times.shortened_rate / times.full_rate, PRINTED_DELTA, 100 * times.changed,
            1e3 * times.ideal_delta_s, 1e3 * times.shortened_s,
        ]
        for model, count, times in measured_chains
    ]  # fmt: skip
    note = (
        "The chains start from data parallelism and draw uniform moves; both ways of simulating have the "
        "same draws and the same decisions. Proposals a second: with the shortened simulation, which "
        "stops when a move is certain to be rejected. An ideal delta knows which tasks change and visits "
        "each once, in the time that the full simulation takes for a task."
    )
    return Table("Judging proposals", columns, rows, note)


def _chains_text(proposal_times: list[ProposalTimes]) -> str:
    """Returns sentences that compare the shortened simulation with full and with delta simulation."""
    times = [case_times.shortened_rate / case_times.full_rate for case_times in proposal_times]
    slower = sum(case_times.ideal_delta_s > case_times.shortened_s for case_times in proposal_times)
    return (
        f"Proposals are judged {min(times):.1f} to {max(times):.1f} x as fast as in full (the paper's "
        f"delta: {PRINTED_DELTA} x). A move changes "
        f"{100 * min(case_times.changed for case_times in proposal_times):.0f} to "
        f"{100 * max(case_times.changed for case_times in proposal_times):.0f} % of the timeline; an ideal "
        f"delta would take "
        f"longer than the shortened simulation in {slower} of {len(proposal_times)} cases."
    )
