"""The `mzplan` command, and `python -m mzplan`, by which the detached runner is started."""

from __future__ import annotations

import gc
import signal
from typing import NoReturn

# Loading a command makes 60,000 objects that stay. By default, the cycle collector visits them 80 times.
_ALLOCATIONS = 20_000


def main() -> NoReturn:
    """Run the command line of this process. Ctrl-C while the modules load ends it without a traceback."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # ignored, it stays so
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    gc.set_threshold(_ALLOCATIONS)
    from mzplan.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
