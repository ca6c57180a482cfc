"""`auto`: the best of all methods, improved from the best of them, within the devices' memory.

1. Baselines, OptCNN's optima and experts' plans are starts; every one is timed.
2. Chains go on from the fastest (flexflow/climbing.py).
3. The fastest are simulated for several steps and their memory is counted; the fastest that fits is the
   answer. No baseline that fits is faster: those that could be are simulated too.
4. If nothing fits, values are computed again in place of being kept; if that does not help, it says so.
5. A pipeline (searches/pipeline) is taken where it is faster, or where nothing else fits.

Whatever fails on the way is left out and reported (attempts.py); the others compete.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from raddle.clusters import Cluster
from raddle.errors import InputError
from raddle.graph.graph import Graph
from raddle.searches.attempts import Attempts
from raddle.searches.auto.candidates import Candidate, Judge, Timer
from raddle.searches.auto.recompute_to_fit import squeezed
from raddle.searches.baselines import BASELINES
from raddle.searches.bounds import lower_bound
from raddle.searches.flexflow.multi_chain import Climb
from raddle.searches.grids import Tiles
from raddle.searches.optcnn.optima import optima, staged_optima
from raddle.searches.pipeline.method import Candidate as PipelineCandidate
from raddle.searches.pipeline.method import pipeline
from raddle.searches.plan_space import PlanSpace
from raddle.searches.ranking import MAX_EVALUATED_DEVICES
from raddle.searches.settings import Clock, SearchResult, Settings
from raddle.searches.starts import Starts, baseline_starts, expert_starts

CHAINS = 6
FINALISTS = 6  # that are simulated beside the baselines
PIPELINES = 0.2  # of the budget


def search(graph: Graph, cluster: Cluster, settings: Settings) -> SearchResult:
    """The fastest plan that was found and fits."""
    return Auto(graph, cluster, settings).search()


class Auto:
    """One search."""

    def __init__(self, graph: Graph, cluster: Cluster, settings: Settings) -> None:
        self.graph, self.cluster, self.settings = graph, cluster, settings
        self.attempts = Attempts()
        self.judge = Judge(graph, cluster, settings, self.attempts)
        self.timer = Timer(self.judge)
        self.clock = Clock(settings.budget, settings.stopwatch)
        self.space = PlanSpace(graph, cluster, settings)
        self.climb: Climb | None = None
        self.interrupted = False

    def search(self) -> SearchResult:
        bound = self._bound()
        candidates = self._starts()
        try:
            if candidates and len(self.cluster.devices) <= MAX_EVALUATED_DEVICES:
                candidates += self._improved(candidates)
        except KeyboardInterrupt:
            self.interrupted = True
        tried = [c.row() for c in sorted(candidates, key=lambda c: c.time)]
        pipelines = self._pipelines()
        try:
            best = self._final(candidates)
            found = SearchResult(best.tiles, best.name, recompute=best.recompute)
            step = best.seconds
        except InputError:
            if not pipelines or not pipelines[0].fits:
                raise
            step = float("inf")
        if pipelines and pipelines[0].fits and pipelines[0].step < step:
            found = replace(pipelines[0].found, start=pipelines[0].name)
        climb = self.climb
        return replace(
            found,
            proposals=climb.proposals if climb else 0,
            accepted=sum(c.accepted for c in climb.every) if climb else 0,
            stopped="interrupt" if self.interrupted else (climb and climb.stopped) or "starts",
            history=tuple(climb.history) if climb else (),
            lower_bound_ms=bound,
            tried=(*tried, *(c.row() for c in pipelines)),
            failed=tuple(self.attempts.failures),
        )

    def _bound(self) -> float | None:
        """Milliseconds that no plan goes below; measured operators have no such bound."""
        if self.settings.profile is not None:
            return None
        with self.attempts.attempt("lower bound"):
            found = lower_bound(self.graph, self.cluster, optimizer=self.settings.optimizer)
            return 1e3 * found.seconds
        return None

    def _pipelines(self) -> list[PipelineCandidate]:
        """Stages with the same semantics: exact batch statistics do not divide the batch."""
        settings, graph = self.settings, self.graph
        if len(self.cluster.devices) < 2 or self.interrupted or settings.pins:
            return []
        normalised = any(op.composite_kind == "batch_norm" for op in graph.ops)
        own = replace(settings, budget=PIPELINES * settings.budget)
        try:
            with self.attempts.attempt("pipeline"):
                return pipeline(
                    graph,
                    self.cluster,
                    own,
                    one_batch=normalised and settings.bn == "global",
                    promising=2,
                )
        except KeyboardInterrupt:
            self.interrupted = True
        return []

    # -- starts ----------------------------------------------------------------------------------

    def _starts(self) -> list[Candidate]:
        self.settings.on_progress({"step": "starts", "done": 0, "of": self.settings.budget})
        found = baseline_starts(self.space, BASELINES, self.attempts)
        for name, tiles in self.settings.starts.items():
            with self.attempts.attempt(name):
                found[name] = self.space.with_pins(tiles)
        try:
            for name, starts in self._searched_starts().items():
                with self.attempts.attempt(name):
                    found |= starts(self.space)
        except KeyboardInterrupt:
            if not found:
                raise
            self.interrupted = True
        if len(self.cluster.devices) > MAX_EVALUATED_DEVICES:
            return self._simulated_starts(found)
        candidates = []
        for name, tiles in found.items():
            with self.attempts.attempt(name):
                candidates.append(self.timer.timed(name, tiles))
        return candidates

    def _searched_starts(self) -> dict[str, Starts]:
        found: dict[str, Starts] = {"optcnn": optima}
        if len(self.cluster.devices) <= MAX_EVALUATED_DEVICES:
            found["staged optcnn"] = staged_optima
        return {**found, "experts": expert_starts}

    def _simulated_starts(self, found: Mapping[str, Tiles]) -> list[Candidate]:
        """On very many devices data parallelism and OptCNN's optima, simulated for a step.

        A message for every pair of devices takes minutes to lower.
        """
        candidates: list[Candidate] = []
        for name, tiles in found.items():
            if name != "data" and not name.startswith("optcnn"):
                continue
            if candidates and self.clock.expired:
                break
            with self.attempts.attempt(name):
                candidates.append(self.judge.stepped(name, tiles))
        return candidates

    # -- improvement -----------------------------------------------------------------------------

    def _improved(self, candidates: list[Candidate]) -> list[Candidate]:
        ranked = sorted(candidates, key=lambda c: c.time)
        over = False
        with self.attempts.attempt("chains"):
            evaluator = self.timer.at(ranked[0].tiles)
            self.climb = Climb(self.space, evaluator, self.clock, self.settings)
            fitting = self._limit(ranked, self.climb)
            seen: set[int] = set()
            for c in fitting:
                if len(self.climb.chains) < CHAINS and c.time not in seen:
                    seen.add(c.time)  # equal times are nearly always equal plans
                    self.climb.add(c.name, c.tiles)
            self.climb.run(0.85 * self.settings.budget)
            over = True
            if self.climb.stopped == "interrupt":
                self.interrupted = True
        if not over:
            self.timer.forget()  # the evaluator that chains had may have stopped amid a move
        improved = []
        for own in self.climb.every if self.climb else ():
            name = f"{own.start}, improved"
            with self.attempts.attempt(name):
                improved.append(self._judged(name, own.best, own.best_time))
        return improved

    def _judged(self, name: str, tiles: Tiles, time: int) -> Candidate:
        """What a chain has found, with the load of its busiest resource."""
        # After an interrupt the evaluator may have stopped amid a move.
        load = 0 if self.interrupted else int(self.timer.at(tiles).load.max())
        return Candidate(name, tiles, time, load)

    def _limit(self, ranked: list[Candidate], climb: Climb) -> list[Candidate]:
        """Starts that fit, and for the chains a limit on memory where that is scarce."""
        capacity = np.array([d.memory for d in self.cluster.devices], np.float64)
        scale, fitting = 1.0, []
        for c in ranked[:CHAINS]:
            estimate = np.maximum(self.timer.at(c.tiles).memory, 1)
            if (1.5 * estimate <= 0.5 * capacity).all():
                fitting.append(c)  # far from full, whatever the estimate leaves out
                continue
            if not self.judge.simulate(c):
                continue
            scale = max(scale, max(c.peaks) / float(estimate.max()))
            if c.fits:
                fitting.append(c)
        if scale > 1.0:
            evaluator = climb.evaluator
            climb.fits = lambda: bool((scale * evaluator.memory <= capacity).all())  # about
        return fitting or ranked[:CHAINS]

    # -- the answer ------------------------------------------------------------------------------

    def _final(self, candidates: list[Candidate]) -> Candidate:
        """The fastest that fits; after an interrupt, of those that have been simulated."""
        best: Candidate | None = None
        ranked = sorted(candidates, key=lambda c: c.time)
        budget = self.settings.budget
        try:
            for number, c in enumerate(ranked):
                self.settings.on_progress(
                    {"step": f"simulating {c.name}", "done": 0.9 * budget, "of": budget}
                )
                if best is None or self._may_be_faster(c, best, number):
                    self.judge.simulate(c)
                    if c.fits and (best is None or c.seconds < best.seconds):
                        best = c
        except KeyboardInterrupt:
            self.interrupted = True
        return best if best is not None else squeezed(self.judge, ranked, len(self.space.groups))

    def _may_be_faster(self, c: Candidate, best: Candidate, number: int) -> bool:
        """A period can be shorter than a step on its own, but no shorter than the busiest resource."""
        if c.load / 1e9 >= best.seconds or c.time / 1e9 > 1.5 * best.seconds:
            return False
        return number < FINALISTS or c.name in BASELINES or c.name in self.settings.starts
