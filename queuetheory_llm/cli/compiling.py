"""A word to the person who waits while the runner is compiled."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def compile_note() -> Iterator[None]:
    """Say on stderr when numba compiles what it will keep on disk; nothing where stderr is no terminal.

    What is compiled for one run alone, a rule of one's own, is short and passed over.
    """
    if not sys.stderr.isatty():
        yield
        return
    from numba.core import event
    from numba.core.caching import NullCache

    class Listener(event.Listener):
        said = False

        def on_start(self, found: Any) -> None:
            if not self.said and not isinstance(found.data["dispatcher"]._cache, NullCache):
                self.said = True
                print("compiling the runner: some ten seconds, once on this machine ...", file=sys.stderr, flush=True)

        def on_end(self, found: Any) -> None:
            pass

    with event.install_listener("numba:compile", Listener()):
        yield
