"""The search of `auto`: tries all methods, improves the best plans, and takes the fastest that fits memory.

1. Starts, which are plans to begin with: baselines, OptCNN's optima and expert plans (starts.py). Each is
   timed for a single step.
2. Markov chains (flexflow/multi_chain.py) improve the fastest starts.
3. The fastest candidates are simulated for several steps, with their memory. The fastest that fits is the
   result. Baselines that could be faster are simulated too, so no baseline that fits is faster than it.
4. Candidates that would be faster but do not fit get ZeRO (shard_to_fit.py). If nothing fits, activations
   are recomputed (recompute_to_fit.py). If that does not help either, and no pipeline fits, the search
   raises an error.
5. A pipeline (searches/pipeline) is taken if it is faster, or if nothing else fits.

A candidate that fails is left out and reported (attempts.py); the search goes on with the others. Each part
has a share of the budget; when the time is used up, the best plan so far is the result (stopwatch.py).
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace

import numpy as np

from raddle.clusters import Cluster
from raddle.errors import InputError, OutOfTime
from raddle.graph.graph import Graph
from raddle.searches.attempts import Attempts
from raddle.searches.auto.candidates import Candidate, CandidateSimulator, CandidateTimer
from raddle.searches.auto.recompute_to_fit import recompute_to_fit, too_large_message
from raddle.searches.auto.shard_to_fit import shard_to_fit
from raddle.searches.auto.timed_starts import StartTimer, is_expert
from raddle.searches.bounds import lower_bound
from raddle.searches.flexflow.multi_chain import MultiChain
from raddle.searches.grids import Tiles
from raddle.searches.pipeline.method import PipelineCandidate as PipelineCandidate
from raddle.searches.pipeline.method import pipeline_candidates
from raddle.searches.pipeline.three_d import three_d_candidates
from raddle.searches.plan_space import PlanSpace
from raddle.searches.ranking import MAX_EVALUATED_DEVICES
from raddle.searches.settings import SearchResult, Settings

MAX_CHAINS = 6  # Markov chains, each from another start
MAX_FINALISTS = 6  # candidates to simulate for several steps, besides baselines
# Parts of the budget. What is left is for the simulations of candidates, and for the choice of a sync kind.
CHAINS_END = 0.6  # the Markov chains end when this fraction of the budget is used up
FINALISTS_SHARE = 0.3  # simulating candidates while none fits
PIPELINE_SHARE = 0.2  # searching and simulating pipelines


def search(graph: Graph, cluster: Cluster, settings: Settings) -> SearchResult:
    """Returns the fastest plan that `auto` finds and that fits the devices' memory."""
    return AutoSearch(graph, cluster, settings).search()


class AutoSearch:
    """One run of `auto`."""

    def __init__(self, graph: Graph, cluster: Cluster, settings: Settings) -> None:
        settings = settings.with_running_clock()
        self.graph, self.cluster, self.settings = graph, cluster, settings
        self.attempts = Attempts()
        self.simulator = CandidateSimulator(graph, cluster, settings, self.attempts)
        self.timer = CandidateTimer(self.simulator)
        self.clock = settings.running_clock
        self.space = PlanSpace(graph, cluster, settings)
        self.multi_chain: MultiChain | None = None
        self.sharded: list[Candidate] = []  # candidates with ZeRO, for want of memory
        self.stopped = ""  # "interrupt" or "budget", if that ended a part of the search

    @property
    def interrupted(self) -> bool:
        """Whether the user has ended the search."""
        return self.stopped == "interrupt"

    def _note_stop(self, stop: BaseException) -> None:
        """Notes what has ended a part of the search. The evaluator may be half moved, so it is dropped."""
        if not self.interrupted:
            self.stopped = "interrupt" if isinstance(stop, KeyboardInterrupt) else "budget"
        self.timer.discard_evaluator()

    def search(self) -> SearchResult:
        """Runs all five parts of the search and returns the result.

        An interrupt (Ctrl-C) ends the current part and keeps the best plan so far.
        """
        bound = self._lower_bound_ms()
        candidates = StartTimer(
            self.settings, self.space, self.attempts, self.simulator, self.timer, self._note_stop
        ).timed_starts()
        try:
            if len(self.cluster.devices) <= MAX_EVALUATED_DEVICES and not self.clock.expired:
                candidates += self._run_chains(candidates)
        except (KeyboardInterrupt, OutOfTime) as stop:
            self._note_stop(stop)
        refusal: InputError | None = None
        result, step_seconds = None, math.inf
        try:
            best = self._fastest_that_fits(candidates)
            result = SearchResult(
                best.tiles, best.name, recompute=best.recompute, sync=best.sync,
                sync_is_needed=bool(best.sync) and not self._fits_without_sync(best, candidates),
            )  # fmt: skip
            # A candidate for whose simulation no time was left is known by its single step.
            step_seconds = best.time / 1e9 if best.step_seconds is None else best.step_seconds
        except InputError as error:
            refusal = error
        pipelines = self._pipelines()
        if pipelines and pipelines[0].fits and pipelines[0].step_seconds < step_seconds:
            result = replace(pipelines[0].result, start=pipelines[0].name)
        if result is None:
            assert refusal is not None
            raise refusal
        tried = [c.row() for c in sorted([*candidates, *self.sharded], key=lambda c: c.time)]
        multi_chain = self.multi_chain
        return replace(
            result,
            proposals=multi_chain.proposals if multi_chain else 0,
            accepted=sum(c.accepted for c in multi_chain.all_chains) if multi_chain else 0,
            stopped=self.stopped
            or (multi_chain and multi_chain.stopped)
            or "starts",  # "starts": no chain ran
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
        if len(self.cluster.devices) < 2 or self.interrupted or settings.pins or self.clock.expired:
            return []
        has_batch_norm = any(op.composite_kind == "batch_norm" for op in graph.ops)
        pipeline_settings = replace(settings, clock=self.clock.part(PIPELINE_SHARE))
        candidates: list[PipelineCandidate] = []
        try:
            with self.attempts.attempt("pipeline"):
                candidates += pipeline_candidates(
                    graph,
                    self.cluster,
                    pipeline_settings,
                    one_microbatch=has_batch_norm and settings.bn == "global",
                    max_simulated=2,
                )
            pipeline_settings = replace(settings, clock=self.clock.part(PIPELINE_SHARE))
            with suppress(InputError):  # it applies to transformers on four devices or more
                candidates += three_d_candidates(graph, self.cluster, pipeline_settings)
        except (KeyboardInterrupt, OutOfTime) as stop:
            self._note_stop(stop)
        return sorted(candidates, key=lambda c: (not c.fits, c.step_seconds))

    # -- improvement -----------------------------------------------------------------------------

    def _run_chains(self, candidates: list[Candidate]) -> list[Candidate]:
        """Improves the fastest candidates with Markov chains; returns the best plan of each chain."""
        ranked = sorted(candidates, key=lambda c: c.time)
        finished = False
        with self.attempts.attempt("chains"):
            fastest = next(c for c in ranked if not c.sync)
            evaluator = self.timer.evaluator_at(fastest.tiles)
            self.multi_chain = MultiChain(self.space, evaluator, self.clock, self.settings)
            fitting = self._fitting_starts(ranked, self.multi_chain)
            seen: set[int] = set()
            for c in fitting:
                if len(self.multi_chain.chains) < MAX_CHAINS and c.time not in seen:
                    seen.add(c.time)  # equal times are nearly always equal plans
                    self.multi_chain.add_chain(c.name, c.tiles)
            # Pipelines and simulations come after the chains.
            self.multi_chain.run(CHAINS_END * self.clock.budget)
            finished = True
            if self.multi_chain.stopped == "interrupt":
                self.stopped = "interrupt"
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
        ranked = [c for c in ranked if not c.sync][:MAX_CHAINS]  # the chains all-reduce
        for c in ranked:
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
        return fitting or ranked

    # -- the result ------------------------------------------------------------------------------

    def _fastest_that_fits(self, candidates: list[Candidate]) -> Candidate:
        """Returns the fastest candidate that fits. An interrupt leaves out those not yet simulated."""
        ranked = sorted(candidates, key=lambda c: c.time)
        best = self._fastest_finalist(ranked)
        if not self.interrupted:
            self.sharded = shard_to_fit(self.simulator, ranked, best)
        best = min(
            (c for c in (best, *self.sharded) if c is not None and c.fits),
            key=lambda c: c.simulated_seconds,
            default=None,
        )
        if best is not None:
            return best
        try:
            return recompute_to_fit(
                self.simulator, [*ranked, *self.sharded], len(self.space.groups)
            )
        except OutOfTime as stop:
            self._note_stop(stop)
        unknown = [c for c in ranked if c.fits is None and not c.failed]
        if unknown:
            return unknown[0]  # nothing says that it does not fit
        least = min((c for c in ranked if c.peaks), key=lambda c: max(c.peaks))
        raise InputError(too_large_message(self.simulator, least))

    def _fits_without_sync(self, best: Candidate, candidates: list[Candidate]) -> bool:
        """Returns whether the plan fits without ZeRO, so that other sync kinds may be tried for it."""
        plain = next((c for c in candidates if not c.sync and c.tiles == best.tiles), None)
        if plain is None:
            return False
        with suppress(OutOfTime):
            self.simulator.simulate(plain)
        return bool(plain.fits)

    def _fastest_finalist(self, ranked: list[Candidate]) -> Candidate | None:
        """Returns the fastest of the simulated candidates that fit, if any does."""
        best: Candidate | None = None
        # While none fits, the simulations leave time for ZeRO and recomputation.
        clock = self.clock.part(FINALISTS_SHARE)
        try:
            for number, c in enumerate(ranked):
                self.settings.on_progress(self.clock.progress(f"simulating {c.name}"))
                if best is None and number and clock.expired:
                    break
                if best is not None and self.clock.expired and not is_expert(c):
                    continue
                equal = next((x for x in ranked[:number] if x.is_simulated_as(c)), None)
                if equal is not None:
                    c.step_seconds, c.peaks, c.fits = equal.step_seconds, equal.peaks, equal.fits
                elif best is None or self._may_be_faster(c, best, number):
                    self.simulator.simulate(c)
                    if c.fits and (best is None or c.simulated_seconds < best.simulated_seconds):
                        best = c
        except (KeyboardInterrupt, OutOfTime) as stop:
            self._note_stop(stop)
        return best

    def _may_be_faster(self, c: Candidate, best: Candidate, number: int) -> bool:
        """Returns whether a candidate could be faster than `best`, so that it is worth a simulation.

        In the steady state a step can be shorter than a single step, since steps overlap, but not shorter
        than the load of the busiest resource. A candidate whose single step takes more than 1.5 times as
        long as a step of `best` is taken to be slower. number: its rank by single-step time, from 0.
        """
        if c.load / 1e9 >= best.simulated_seconds or c.time / 1e9 > 1.5 * best.simulated_seconds:
            return False
        return number < MAX_FINALISTS or c.name in self.settings.starts or is_expert(c)
