"""The search of `auto`: tries all methods, improves the best plans, and takes the fastest that fits memory.

1. Starts, which are plans to begin with: baselines, OptCNN's optima and expert plans (starts.py). Each is
   timed for a single step.
2. Markov chains (flexflow/multi_chain.py) improve the fastest starts.
3. The fastest candidates are simulated for several steps, with their memory. The fastest that fits is the
   result. Baselines that could be faster are simulated too, so no baseline that fits is faster than it.
4. If nothing fits, activations are recomputed (recompute_to_fit.py). If that does not help either, and no
   pipeline fits, the search raises an error.
5. A pipeline (searches/pipeline) is taken if it is faster, or if nothing else fits.

A candidate that fails is left out and reported (attempts.py); the search goes on with the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from raddle.clusters import Cluster
from raddle.errors import InputError
from raddle.graph.graph import Graph
from raddle.searches.attempts import Attempts
from raddle.searches.auto.candidates import Candidate, CandidateSimulator, CandidateTimer
from raddle.searches.auto.recompute_to_fit import recompute_to_fit
from raddle.searches.baselines import BASELINES
from raddle.searches.bounds import lower_bound
from raddle.searches.flexflow.multi_chain import MultiChain
from raddle.searches.grids import Tiles
from raddle.searches.optcnn.optima import optima, staged_optima
from raddle.searches.pipeline.method import PipelineCandidate as PipelineCandidate
from raddle.searches.pipeline.method import pipeline_candidates
from raddle.searches.plan_space import PlanSpace
from raddle.searches.ranking import MAX_EVALUATED_DEVICES
from raddle.searches.settings import Clock, SearchResult, Settings
from raddle.searches.starts import StartsFunction, baseline_starts, expert_starts

MAX_CHAINS = 6  # Markov chains, each from another start
MAX_FINALISTS = 6  # candidates to simulate for several steps, besides baselines
PIPELINE_SHARE = 0.2  # fraction of the budget for pipelines


def search(graph: Graph, cluster: Cluster, settings: Settings) -> SearchResult:
    """Returns the fastest plan that `auto` finds and that fits the devices' memory."""
    return AutoSearch(graph, cluster, settings).search()


class AutoSearch:
    """One run of `auto`."""

    def __init__(self, graph: Graph, cluster: Cluster, settings: Settings) -> None:
        self.graph, self.cluster, self.settings = graph, cluster, settings
        self.attempts = Attempts()
        self.simulator = CandidateSimulator(graph, cluster, settings, self.attempts)
        self.timer = CandidateTimer(self.simulator)
        self.clock = Clock(settings.budget, settings.stopwatch)
        self.space = PlanSpace(graph, cluster, settings)
        self.multi_chain: MultiChain | None = None
        self.interrupted = False

    def search(self) -> SearchResult:
        """Runs all five parts of the search and returns the result.

        An interrupt (Ctrl-C) ends the current part and keeps the best plan so far.
        """
        bound = self._lower_bound_ms()
        candidates = self._timed_starts()
        try:
            if candidates and len(self.cluster.devices) <= MAX_EVALUATED_DEVICES:
                candidates += self._run_chains(candidates)
        except KeyboardInterrupt:
            self.interrupted = True
        tried = [c.row() for c in sorted(candidates, key=lambda c: c.time)]
        pipelines = self._pipelines()
        try:
            best = self._fastest_that_fits(candidates)
            result = SearchResult(best.tiles, best.name, recompute=best.recompute)
            step_seconds = best.simulated_seconds
        except InputError:
            if not pipelines or not pipelines[0].fits:
                raise
            step_seconds = float("inf")
        if pipelines and pipelines[0].fits and pipelines[0].step_seconds < step_seconds:
            result = replace(pipelines[0].result, start=pipelines[0].name)
        multi_chain = self.multi_chain
        return replace(
            result,
            proposals=multi_chain.proposals if multi_chain else 0,
            accepted=sum(c.accepted for c in multi_chain.all_chains) if multi_chain else 0,
            stopped="interrupt"
            if self.interrupted
            else (multi_chain and multi_chain.stopped) or "starts",  # "starts": no chain ran
            history=tuple(multi_chain.history) if multi_chain else (),
            lower_bound_ms=bound,
            tried=(*tried, *(c.row() for c in pipelines)),
            failed=tuple(self.attempts.failures),
        )

    def _lower_bound_ms(self) -> float | None:
        """Returns the lower bound of the step time in milliseconds; None with measured operators."""
        if self.settings.profile is not None:
            return None
        with self.attempts.attempt("lower bound"):
            bound = lower_bound(self.graph, self.cluster, optimizer=self.settings.optimizer)
            return 1e3 * bound.seconds
        return None  # the attempt failed

    def _pipelines(self) -> list[PipelineCandidate]:
        """Returns pipeline candidates, the fastest first; none on one device, with pins, or if interrupted.

        Global batch statistics need the whole batch at once, so there are no micro-batches with them.
        """
        settings, graph = self.settings, self.graph
        if len(self.cluster.devices) < 2 or self.interrupted or settings.pins:
            return []
        has_batch_norm = any(op.composite_kind == "batch_norm" for op in graph.ops)
        pipeline_settings = replace(settings, budget=PIPELINE_SHARE * settings.budget)
        try:
            with self.attempts.attempt("pipeline"):
                return pipeline_candidates(
                    graph,
                    self.cluster,
                    pipeline_settings,
                    one_microbatch=has_batch_norm and settings.bn == "global",
                    max_simulated=2,
                )
        except KeyboardInterrupt:
            self.interrupted = True
        return []

    # -- starts ----------------------------------------------------------------------------------

    def _timed_starts(self) -> list[Candidate]:
        """Returns all starts as candidates, with the time of a single step."""
        self.settings.on_progress({"step": "starts", "done": 0, "of": self.settings.budget})
        tiles_by_start = baseline_starts(self.space, BASELINES, self.attempts)
        for name, tiles in self.settings.starts.items():
            with self.attempts.attempt(name):
                tiles_by_start[name] = self.space.with_pins(tiles)
        try:
            for name, starts in self._start_functions().items():
                with self.attempts.attempt(name):
                    tiles_by_start |= starts(self.space)
        except KeyboardInterrupt:
            if not tiles_by_start:
                raise
            self.interrupted = True
        if len(self.cluster.devices) > MAX_EVALUATED_DEVICES:
            return self._simulated_starts(tiles_by_start)
        candidates = []
        for name, tiles in tiles_by_start.items():
            with self.attempts.attempt(name):
                candidates.append(self.timer.time_candidate(name, tiles))
        return candidates

    def _start_functions(self) -> dict[str, StartsFunction]:
        """Returns the functions that make starts by a search of their own, by name."""
        functions: dict[str, StartsFunction] = {"optcnn": optima}
        if len(self.cluster.devices) <= MAX_EVALUATED_DEVICES:
            # The groups are divided into 2 or 4 stages, each with OptCNN's optimum on its own devices.
            functions["staged optcnn"] = staged_optima
        return {**functions, "experts": expert_starts}

    def _simulated_starts(self, tiles_by_start: Mapping[str, Tiles]) -> list[Candidate]:
        """Returns the starts for very many devices: data parallelism and OptCNN's optima, each simulated.

        Other starts have a message for every pair of devices, and take minutes to lower.
        """
        candidates: list[Candidate] = []
        for name, tiles in tiles_by_start.items():
            if name != "data" and not name.startswith("optcnn"):
                continue
            if candidates and self.clock.expired:
                break
            with self.attempts.attempt(name):
                candidates.append(self.simulator.simulate_single_step(name, tiles))
        return candidates

    # -- improvement -----------------------------------------------------------------------------

    def _run_chains(self, candidates: list[Candidate]) -> list[Candidate]:
        """Improves the fastest candidates with Markov chains; returns the best plan of each chain."""
        ranked = sorted(candidates, key=lambda c: c.time)
        finished = False
        with self.attempts.attempt("chains"):
            evaluator = self.timer.evaluator_at(ranked[0].tiles)
            self.multi_chain = MultiChain(self.space, evaluator, self.clock, self.settings)
            fitting = self._fitting_starts(ranked, self.multi_chain)
            seen: set[int] = set()
            for c in fitting:
                if len(self.multi_chain.chains) < MAX_CHAINS and c.time not in seen:
                    seen.add(c.time)  # equal times are nearly always equal plans
                    self.multi_chain.add_chain(c.name, c.tiles)
            # The chains end at 85% of the budget: pipelines and simulations come after them.
            self.multi_chain.run(0.85 * self.settings.budget)
            finished = True
            if self.multi_chain.stopped == "interrupt":
                self.interrupted = True
        if not finished:
            # The chains may have left the evaluator with only some of a plan's tiles.
            self.timer.discard_evaluator()
        improved = []
        for chain in self.multi_chain.all_chains if self.multi_chain else ():
            name = f"{chain.start}, improved"
            with self.attempts.attempt(name):
                improved.append(self._chain_candidate(name, chain.best, chain.best_time))
        return improved

    def _chain_candidate(self, name: str, tiles: Tiles, time: int) -> Candidate:
        """Returns the best plan of a chain as a candidate, with the load of its busiest resource."""
        # After an interrupt the evaluator may be half moved, so the load is left out.
        load = 0 if self.interrupted else int(self.timer.evaluator_at(tiles).load.max())
        return Candidate(name, tiles, time, load)

    def _fitting_starts(self, ranked: list[Candidate], multi_chain: MultiChain) -> list[Candidate]:
        """Returns the fastest starts that fit memory, or the fastest of all if none of these fits.

        Starts that need much memory are simulated. If the evaluator's memory estimate is too low for one of
        them, the chains get a memory limit (`fits`). `scale` corrects the estimate: it is the largest ratio
        of simulated to estimated peak memory, and at least 1. ranked: candidates, the fastest first.
        """
        # estimate: bytes of each device; capacity: bytes of its memory
        capacity = np.array([d.memory for d in self.cluster.devices], np.float64)
        scale, fitting = 1.0, []
        for c in ranked[:MAX_CHAINS]:
            estimate = np.maximum(self.timer.evaluator_at(c.tiles).memory, 1)
            if (1.5 * estimate <= 0.5 * capacity).all():
                fitting.append(c)  # far from full, even if the estimate is much too low
                continue
            if not self.simulator.simulate(c):
                continue
            scale = max(scale, max(c.peaks) / float(estimate.max()))
            if c.fits:
                fitting.append(c)
        if scale > 1.0:
            evaluator = multi_chain.evaluator
            multi_chain.fits = lambda: bool((scale * evaluator.memory <= capacity).all())
        return fitting or ranked[:MAX_CHAINS]

    # -- the result ------------------------------------------------------------------------------

    def _fastest_that_fits(self, candidates: list[Candidate]) -> Candidate:
        """Returns the fastest candidate that fits. An interrupt leaves out those not yet simulated."""
        best: Candidate | None = None
        ranked = sorted(candidates, key=lambda c: c.time)
        budget = self.settings.budget
        try:
            for number, c in enumerate(ranked):
                self.settings.on_progress(
                    {"step": f"simulating {c.name}", "done": 0.9 * budget, "of": budget}
                )
                if best is None or self._may_be_faster(c, best, number):
                    self.simulator.simulate(c)
                    if c.fits and (best is None or c.simulated_seconds < best.simulated_seconds):
                        best = c
        except KeyboardInterrupt:
            self.interrupted = True
        return (
            best
            if best is not None
            else recompute_to_fit(self.simulator, ranked, len(self.space.groups))
        )

    def _may_be_faster(self, c: Candidate, best: Candidate, number: int) -> bool:
        """Returns whether a candidate could be faster than `best`, so that it is worth a simulation.

        In the steady state a step can be shorter than a single step, since steps overlap, but not shorter
        than the load of the busiest resource. A candidate whose single step takes more than 1.5 times as
        long as a step of `best` is taken to be slower. number: its rank by single-step time, from 0.
        """
        if c.load / 1e9 >= best.simulated_seconds or c.time / 1e9 > 1.5 * best.simulated_seconds:
            return False
        return number < MAX_FINALISTS or c.name in BASELINES or c.name in self.settings.starts
