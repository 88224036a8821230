"""The line that requests of a load test stand in, and how a server takes them off it."""

import abc
from collections import deque
from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING

from crosshead.runtimes.base import Step
from crosshead.runtimes.load_clock import TICK_S, Clock

if TYPE_CHECKING:
    from array import array

FIELDS = 4
"""What is kept of a request: intended send time, start and end of its call, and whether a server stood idle for it."""


class Line(abc.ABC):
    """Requests in the order they are to be sent. Taken from by several threads at once."""

    stopped = False
    back_s = 0.0
    """By how much the clock was seen to go back while a server waited for a request."""

    @abc.abstractmethod
    def take(self) -> float | None:
        """Return when the next request is to be sent; None when there are no more."""

    def answered(self, at_s: float) -> None:  # noqa: B027  # a hook: in an open loop nobody waits for it
        """Take note that a request was answered."""

    def stop(self) -> None:
        """Hand out no more requests."""
        self.stopped = True


class Arrivals(Line):
    """An open loop: requests come at times that do not depend on the server."""

    def __init__(self, intended_s: Sequence[float]) -> None:
        """Take the times.

        Args:
            intended_s: when each is to be sent, rising.
        """
        self._intended_s = intended_s
        self._next = count()  # its `next` is atomic, and so takes no lock

    def take(self) -> float | None:
        """Return when the next request is to be sent; None when there are no more."""
        number = next(self._next)
        return None if self.stopped or number >= len(self._intended_s) else self._intended_s[number]


class Clients(Line):
    """A closed loop: so many clients, each sending again as soon as it was answered, until an end."""

    def __init__(self, clients: int, start_s: float, end_s: float) -> None:
        """Let all clients be ready at the start.

        Args:
            clients: how many; at least one for each server.
            start_s: when the first requests are sent.
            end_s: from here on nobody sends again.
        """
        self._ready = deque([start_s] * clients)
        self._end_s = end_s

    def take(self) -> float | None:
        """Return since when the next client has been ready; None when none is to send again."""
        if self.stopped or not self._ready:
            return None
        ready_s = self._ready.popleft()
        return ready_s if ready_s < self._end_s else None

    def answered(self, at_s: float) -> None:
        """Let the client that was answered send again."""
        self._ready.append(at_s)


def turn(line: Line, step: Step, clock: Clock, samples: "array[float]") -> bool:
    """Serve one request: take it, wait until it is due, call, and keep the times; False where there was none."""
    intended = line.take()
    if intended is None:
        return False
    free = started = clock.now()
    while started < intended:
        if line.stopped:
            return False
        clock.wait(min(intended - started, TICK_S))
        before, started = started, clock.now()
        if started < before:
            line.back_s = max(line.back_s, before - started)
    step()
    ended = clock.now()
    samples.extend((intended, started, ended, free <= intended))
    line.answered(ended)
    return True
