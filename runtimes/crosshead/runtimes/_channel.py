"""The parent's end of the pipe: whole lines from a worker, with a time limit, on every operating system."""

import queue
import threading
from typing import IO

LONGEST_LINE_BYTES = 256 << 20
"""A longer line is no reply: ten million samples take less."""


class LineReader:
    """Reads lines in a thread, so that waiting for one can end in time; pipes cannot be polled on Windows."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._ended = False
        self._thread = threading.Thread(target=_pump, args=(pipe, self._lines), daemon=True)
        self._thread.start()

    def next_line(self, timeout_s: float) -> bytes | None:
        """Return the next line without its end; None when the other side closed the pipe.

        Raises:
            queue.Empty: nothing came in time.
        """
        if self._ended:
            return None
        line = self._lines.get(timeout=timeout_s) if timeout_s > 0 else self._lines.get_nowait()
        if line is None:
            self._ended = True
        return line

    def join(self) -> None:
        """Wait until the pipe is at its end; it is when the worker is dead."""
        self._thread.join(timeout=5.0)


def _pump(pipe: IO[bytes], lines: "queue.SimpleQueue[bytes | None]") -> None:
    with pipe:
        try:
            while line := pipe.readline(LONGEST_LINE_BYTES):
                lines.put(line.rstrip(b"\r\n"))
        except (OSError, ValueError):  # closed under the reader
            pass
        lines.put(None)
