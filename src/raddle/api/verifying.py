"""A plan trained beside the plain module, and compared: numbers, and bytes that were sent."""

from __future__ import annotations

from raddle.verification.verify_plan import verify

__all__ = ["verify"]
