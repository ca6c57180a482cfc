"""Fits the latency and the bandwidth of a link to the measured times of messages of several sizes."""

from __future__ import annotations

from collections.abc import Sequence

from raddle.clusters.devices import Link


def fit(samples: Sequence[tuple[int, float]]) -> Link:
    """Fit seconds = latency + nbytes / bandwidth by least squares of the *relative* errors; return a link.

    samples: (bytes, seconds) of each size. With absolute errors, only the largest messages would count,
    and the latency would be noise.
    """
    assert len({nbytes for nbytes, _ in samples}) > 1, (
        "one size does not tell latency from bandwidth"
    )
    # With n bytes in t seconds, u = 1/t and v = n/t: minimise Σ (latency·u + v/bandwidth − 1)². The sums
    # over the samples: uu = Σ u², uv = Σ u·v, vv = Σ v², su = Σ u, sv = Σ v.
    us = [1 / seconds for _, seconds in samples]
    vs = [nbytes / seconds for nbytes, seconds in samples]
    uu, vv = sum(u * u for u in us), sum(v * v for v in vs)
    uv = sum(u * v for u, v in zip(us, vs, strict=True))
    su, sv = sum(us), sum(vs)
    determinant = uu * vv - uv * uv
    latency = (su * vv - sv * uv) / determinant
    inverse_bandwidth = (sv * uu - su * uv) / determinant
    if latency < 0:  # noise: the time grows faster than the size
        latency, inverse_bandwidth = 0.0, sv / vv
    if inverse_bandwidth <= 0:  # noise: large messages were as fast as small ones
        nbytes, seconds = max(samples)
        latency, inverse_bandwidth = min(seconds for _, seconds in samples), seconds / nbytes
    return Link(bandwidth=1 / inverse_bandwidth, latency=latency)
