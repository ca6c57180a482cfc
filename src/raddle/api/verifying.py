"""Trains with a plan and with the plain module, and compares losses, gradients, parameters and bytes."""

from __future__ import annotations

from raddle.verification.verify_plan import verify

__all__ = ["verify"]
