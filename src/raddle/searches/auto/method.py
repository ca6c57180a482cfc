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
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from raddle.clusters import Cluster
from raddle.errors import InputError
from raddle.graph.graph import Graph
from raddle.plans.plan import Plan
from raddle.program.lower import lower
from raddle.searches.attempts import Attempts, reasons
from raddle.searches.baselines import METHODS
from raddle.searches.bounds import lower_bound
from raddle.searches.flexflow.climbing import Climb
from raddle.searches.optcnn.optima import optima, staged_optima
from raddle.searches.pipeline.method import Candidate as PipelineCandidate
from raddle.searches.pipeline.method import pipeline
from raddle.searches.placing import Tiles
from raddle.searches.planspace import PlanSpace
from raddle.searches.ranking import MOST_DEVICES
from raddle.searches.recomputing import blocks
from raddle.searches.settings import Clock, Found, Settings
from raddle.searches.starts import Starts, baseline_starts, expert_starts
from raddle.searches.stepping import proposed, simulated_step
from raddle.simulation.fast.evaluator import Evaluator
from raddle.simulation.memory.layout import Layout
from raddle.simulation.memory.peaks import peak_bytes
from raddle.simulation.timeline import simulate

STEPS = 3  # as figures.judge has it
CHAINS = 6
FINALISTS = 6  # that are simulated beside the baselines
RECOMPUTE = (2, 4, 8, 16)
PIPELINES = 0.2  # of the budget


@dataclass
class Candidate:
    """A plan on its way to being the answer."""

    name: str
    tiles: Tiles
    time: int  # nanoseconds of one step on its own
    load: int = 0  # of the busiest resource: no step is shorter
    step: float | None = None  # seconds, simulated
    peaks: tuple[int, ...] = ()
    fits: bool | None = None
    recompute: int | None = None
    failed: bool = False  # it could not be simulated

    def row(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "step_ms": 1e3 * self.step if self.step is not None else self.time / 1e6,
            "simulated": self.step is not None,
            "fits": self.fits,
            "peak_bytes": max(self.peaks) if self.peaks else None,
            "recompute": self.recompute,
        }


def search(graph: Graph, cluster: Cluster, settings: Settings) -> Found:
    """The fastest plan that was found and fits."""
    return Auto(graph, cluster, settings).search()


class Auto:
    """One search."""

    def __init__(self, graph: Graph, cluster: Cluster, settings: Settings) -> None:
        self.graph, self.cluster, self.settings = graph, cluster, settings
        self.attempts = Attempts()
        self.evaluator: Evaluator | None = None
        self.clock = Clock(settings.budget, settings.watch)
        self.space = PlanSpace(graph, cluster, settings)
        self.climb: Climb | None = None
        self.interrupted = False
        self.stand_in = ""  # the sync that chains time in place of one that the evaluator refuses

    def search(self) -> Found:
        bound = self._bound()
        candidates = self._starts()
        try:
            if candidates and len(self.cluster.devices) <= MOST_DEVICES:
                candidates += self._improved(candidates)
        except KeyboardInterrupt:
            self.interrupted = True
        tried = [c.row() for c in sorted(candidates, key=lambda c: c.time)]
        pipelines = self._pipelines()
        try:
            best = self._final(candidates)
            found = Found(best.tiles, best.name, recompute=best.recompute)
            step = _step(best)
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
            history=tuple(climb.history) if climb and not self.stand_in else (),
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
        normalised = any(op.composite == "batch_norm" for op in graph.ops)
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
        self.settings.heard({"step": "starts", "done": 0, "of": self.settings.budget})
        found = baseline_starts(self.space, METHODS, self.attempts)
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
        if len(self.cluster.devices) > MOST_DEVICES:
            return self._simulated_starts(found)
        if found and self._is_stood_in(next(iter(found.values()))):
            return self._simulated_starts(found)
        candidates = []
        for name, tiles in found.items():
            with self.attempts.attempt(name):
                candidates.append(self._timed(name, tiles))
        return candidates

    def _searched_starts(self) -> dict[str, Starts]:
        found: dict[str, Starts] = {"optcnn": optima}
        if len(self.cluster.devices) <= MOST_DEVICES:
            found["staged optcnn"] = staged_optima
        return {**found, "experts": expert_starts}

    def _is_stood_in(self, tiles: Tiles) -> bool:
        """Whether chains have to time another sync, because the evaluator refuses the plan's."""
        plan = self._plan(tiles, None)
        timed = proposed(plan)
        self.stand_in = "" if timed is plan else timed.sync
        return bool(self.stand_in)

    def _timed(self, name: str, tiles: Tiles) -> Candidate:
        evaluator = self._moved(tiles)
        time = evaluator.time()
        assert time is not None
        return Candidate(name, tiles, time, int(evaluator.load.max()))

    def _moved(self, tiles: Tiles) -> Evaluator:
        """The evaluator at a plan. It refuses plans as a whole; after a mistake it would be amid a move."""
        evaluator, self.evaluator = self.evaluator, None
        try:
            if evaluator is None:
                plan = proposed(self._plan(tiles, None))
                evaluator = Evaluator(self.graph, self.cluster, plan, self.settings.profile)
            evaluator.move(tiles)
        except InputError:
            self.evaluator = evaluator
            raise
        self.evaluator = evaluator
        return evaluator

    def _simulated_starts(self, found: Mapping[str, Tiles]) -> list[Candidate]:
        """What the evaluator does not time, simulated for a step.

        On very many devices these are data parallelism and OptCNN's optima: a message for every pair of
        devices takes minutes to lower.
        """
        many = len(self.cluster.devices) > MOST_DEVICES
        candidates: list[Candidate] = []
        for name, tiles in found.items():
            if many and name != "data" and not name.startswith("optcnn"):
                continue
            if candidates and self.clock.over:
                break
            with self.attempts.attempt(name):
                candidates.append(self._stepped(name, tiles))
        return candidates

    def _stepped(self, name: str, tiles: Tiles) -> Candidate:
        """A candidate whose step on its own is simulated."""
        plan = self._plan(tiles, None)
        step = simulated_step(self.graph, plan, self.cluster, self.settings.profile)
        return Candidate(name, tiles, *step)

    # -- improvement -----------------------------------------------------------------------------

    def _improved(self, candidates: list[Candidate]) -> list[Candidate]:
        ranked = sorted(candidates, key=lambda c: c.time)
        over = False
        with self.attempts.attempt("chains"):
            evaluator = self._moved(ranked[0].tiles)
            self.climb = Climb(
                self.space, evaluator, self.clock, self.settings, stand_in=self.stand_in
            )
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
            self.evaluator = None  # the one that chains had may have stopped amid a move
        improved = []
        for own in self.climb.every if self.climb else ():
            name = f"{own.start}, improved"
            with self.attempts.attempt(name):
                improved.append(self._judged(name, own.best, own.best_time))
        return improved

    def _judged(self, name: str, tiles: Tiles, time: int) -> Candidate:
        """What a chain has found, with the load of its busiest resource."""
        if self.stand_in:
            return self._stepped(name, tiles)
        # After an interrupt the evaluator may have stopped amid a move.
        load = 0 if self.interrupted else int(self._moved(tiles).load.max())
        return Candidate(name, tiles, time, load)

    def _limit(self, ranked: list[Candidate], climb: Climb) -> list[Candidate]:
        """Starts that fit, and for the chains a limit on memory where that is scarce."""
        capacity = np.array([d.memory for d in self.cluster.devices], np.float64)
        scale, fitting = 1.0, []
        for c in ranked[:CHAINS]:
            estimate = np.maximum(self._moved(c.tiles).memory, 1)
            if (1.5 * estimate <= 0.5 * capacity).all():
                fitting.append(c)  # far from full, whatever the estimate leaves out
                continue
            if not self._simulate(c):
                continue
            scale = max(scale, max(c.peaks) / float(estimate.max()))
            if c.fits:
                fitting.append(c)
        if scale > 1.0:
            evaluator = climb.evaluator
            climb.fits = lambda: bool((scale * evaluator.memory <= capacity).all())  # about
        return fitting or ranked[:CHAINS]

    # -- the answer ------------------------------------------------------------------------------

    def _plan(self, tiles: Tiles, recompute: int | None) -> Plan:
        settings = self.settings
        plan = Plan(
            tiles, len(self.cluster.devices), method="auto", batch=self.graph.batch, **settings.plan
        )
        return plan if recompute is None else replace(plan, recompute=blocks(self.graph, recompute))

    def _simulate(self, c: Candidate) -> bool:
        """Whether a candidate's steps could be simulated; if so, it knows what they take."""
        if c.step is None and not c.failed:
            with self.attempts.attempt(c.name):
                plan = replace(self._plan(c.tiles, c.recompute), steps=STEPS)
                timeline = simulate(lower(self.graph, plan), self.cluster, self.settings.profile)
                c.step, c.peaks = timeline.step_seconds, tuple(peak_bytes(timeline))
                rooms = [d.memory for d in self.cluster.devices]
                c.fits = all(peak <= room for peak, room in zip(c.peaks, rooms, strict=True))
            c.failed = c.step is None
        return not c.failed

    def _final(self, candidates: list[Candidate]) -> Candidate:
        """The fastest that fits; after an interrupt, of those that have been simulated."""
        best: Candidate | None = None
        ranked = sorted(candidates, key=lambda c: c.time)
        budget = self.settings.budget
        try:
            for number, c in enumerate(ranked):
                self.settings.heard(
                    {"step": f"simulating {c.name}", "done": 0.9 * budget, "of": budget}
                )
                if best is None or self._may_be_faster(c, best, number):
                    self._simulate(c)
                    if c.fits and (best is None or _step(c) < _step(best)):
                        best = c
        except KeyboardInterrupt:
            self.interrupted = True
        return best if best is not None else self._squeezed(ranked)

    def _may_be_faster(self, c: Candidate, best: Candidate, number: int) -> bool:
        """A period can be shorter than a step on its own, but no shorter than the busiest resource."""
        if c.load / 1e9 >= _step(best) or c.time / 1e9 > 1.5 * _step(best):
            return False
        return number < FINALISTS or c.name in METHODS or c.name in self.settings.starts

    def _squeezed(self, ranked: list[Candidate]) -> Candidate:
        """Nothing fits: the candidates that need least, with values computed again in the backward."""
        ranked = [c for c in ranked if self._simulate(c)]
        if not ranked:
            raise InputError(
                f"auto found no plan for '{self.graph.name}' at batch {self.graph.batch} on "
                f"'{self.cluster.name}': {reasons(self.attempts.failures)}."
            )
        small = sorted(ranked, key=lambda c: max(c.peaks))[:3]
        chosen = list({id(c): c for c in [*ranked[:2], *small]}.values())
        best: Candidate | None = None
        for c in chosen:
            for recompute in RECOMPUTE:
                if recompute > len(self.space.groups):
                    break
                new = replace(c, recompute=recompute, step=None, name=f"{c.name}, recomputed")
                if not self._simulate(new):
                    continue
                small.append(new)
                if new.fits and (best is None or _step(new) < _step(best)):
                    best = new
        if best is None:
            raise InputError(self._too_large(min(small, key=lambda c: max(c.peaks))))
        return best

    def _too_large(self, least: Candidate) -> str:
        """By how much the smallest plan does not fit, and what would help."""
        over = max(
            range(len(least.peaks)), key=lambda d: least.peaks[d] - self.cluster.devices[d].memory
        )
        peak, room = least.peaks[over], self.cluster.devices[over].memory
        program = lower(self.graph, self._plan(least.tiles, least.recompute))
        fixed = int(Layout(program).static()[over])  # whatever the batch
        batch = int(self.graph.batch * (room - fixed) / max(1, peak - fixed)) if room > fixed else 0
        helps = (
            f"a batch of about {batch} would fit"
            if batch >= 1
            else f"a smaller batch would not fit, but devices of {_size(peak)} or more of them would"
        )
        return (
            f"no plan that was found for '{self.graph.name}' at batch {self.graph.batch} fits "
            f"'{self.cluster.name}': the smallest ({least.name}) needs {_size(peak)} on device {over}, "
            f"which has {_size(room)}; {helps}."
        )


def _step(c: Candidate) -> float:
    assert c.step is not None, f"{c.name} has not been simulated"
    return c.step


def _size(nbytes: int) -> str:
    unit, name = (2**30, "GiB") if nbytes >= 2**30 else (2**20, "MiB")
    return f"{nbytes / unit:.3g} {name}"
