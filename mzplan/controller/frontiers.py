"""Since and upper: pure rules of read capabilities (seed 004).

A collection's `since` is the least of its read capabilities: the one implied by its policy, and those that
others hold (a sink that has yet to read, an export that is prepared). All of them only go forward.
"""

from __future__ import annotations

from typing import assert_never

from mzplan.controller.types import CollectionState, LagDuration, LagSteps, ReadPolicy, RetainFrom, Step


def implied(policy: ReadPolicy, upper: Step, young: Step | None) -> Step:
    """The step from which on the policy keeps a collection readable. Never beyond `upper`. `young`: the first
    step within the policy's duration, if it has one (Storage.first_young); None where that is not known."""
    match policy:
        case LagSteps(steps=steps):
            return min(upper, max(0, upper - steps))
        case LagDuration():
            return min(upper, young or 0)
        case RetainFrom(step=step):
            return min(step, upper)
        case _:
            assert_never(policy)


def advance(state: CollectionState, young: Step | None = None) -> None:
    """After the upper or the time has moved on. `young`: see `implied`."""
    state.implied = max(state.implied, implied(state.policy, state.upper, young))


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
