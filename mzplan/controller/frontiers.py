"""Since and upper: pure rules of read capabilities (seed 004).

A collection's `since` is the least of its read capabilities: the one implied by its policy, and those that
others hold (a sink that has yet to read, an export that is prepared). All of them only go forward.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import assert_never

from mzplan.controller.types import CollectionState, LagDuration, LagSteps, ReadPolicy, RetainFrom, Step

Times = Sequence[tuple[Step, float]]
"""Steps and when each became durable (seconds since the epoch), both in order."""


def implied(policy: ReadPolicy, upper: Step, times: Times, now: float) -> Step:
    """The step from which on the policy keeps a collection readable. Never beyond `upper`."""
    match policy:
        case LagSteps(steps=steps):
            return max(0, upper - steps)
        case LagDuration(seconds=seconds):
            # The first step that is young enough; the snapshot before it can then still be made.
            young = bisect.bisect_left(times, now - seconds, key=lambda one: one[1])
            if young < len(times):
                return min(upper, times[young][0])
            return max(0, upper - 1) if times else 0  # the newest can always be read
        case RetainFrom(step=step):
            return min(step, upper)
        case _:
            assert_never(policy)


def set_policy(state: CollectionState, policy: ReadPolicy, times: Times, now: float) -> None:
    """Take a policy: it downgrades the implied capability at once, and never recovers it."""
    state.policy = policy
    advance(state, times, now)


def advance(state: CollectionState, times: Times, now: float) -> None:
    """After the upper or the time has moved on."""
    state.implied = max(state.implied, implied(state.policy, state.upper, times, now))


def advance_upper(state: CollectionState, upper: Step) -> bool:
    """Take a write frontier; False for one that has been seen before."""
    if upper <= state.upper:
        return False
    state.upper = upper
    return True


def hold(state: CollectionState, holder: str, step: Step) -> Step:
    """Take or move a read capability; returns where it is. A new one is never before `since`, and one that
    is there never goes back: what was given up is gone."""
    there = state.holds.get(holder, state.since)
    state.holds[holder] = max(state.since, there, step)
    return state.holds[holder]


def release(state: CollectionState, holder: str) -> None:
    """Give a read capability back; no error where there is none."""
    state.holds.pop(holder, None)
