"""Logs requests: each one on demand, and those with status 503 or 504 always."""

import asyncio
import collections
import contextlib
import datetime
import json
from typing import Any, Counter, Dict, Optional

from absl import logging

from adapter_bert.shell import printing

STYLES = ("text", "json")
_LOGGED = (503, 504)
_SECONDS = 1.0  # Between two lines of refused requests.


class RequestLog:
    """The log of one server's requests. Only the event loop's thread may use it.

    Args:
      style: one of `STYLES` for a line on stdout for each request; None for none.
    """

    def __init__(self, style: Optional[str] = None):
        self._style = style
        self._refused: Counter[int] = collections.Counter()  # By status, since the last line.
        self._last = ""  # Of them, what was asked.

    def add(self, record: Dict[str, Any]) -> None:
        """Logs an answered request.

        Args:
          record: "request", "status" and other JSON values; an empty text is left out.
        """
        if record["status"] in _LOGGED:
            self.add_refusal(record["status"], record["request"])
        if self._style is None:
            return
        now = datetime.datetime.now().astimezone().isoformat(timespec="milliseconds")
        record = {"time": now, **{name: v for name, v in record.items() if v != ""}}
        line = json.dumps(record)
        if self._style == "text":
            words = [f"{n}={v}" for n, v in record.items() if n not in ("time", "request")]
            line = printing.one_line(" ".join([now, record["request"], *words]))
        with contextlib.suppress(OSError):  # Whatever read stdout has ended.
            print(line, flush=True)

    def add_refusal(self, status: int, what: str) -> None:
        """Counts a refused request for a line within a second."""
        if not self._refused:
            asyncio.get_running_loop().call_later(_SECONDS, self._log_refused)
        self._refused[status] += 1
        self._last = what

    def _log_refused(self) -> None:
        counts = ", ".join(f"{count:,} × {status}" for status, count in self._refused.items())
        logging.warning("Refused within a second: %s; the last one: %s", counts, self._last)
        self._refused.clear()
