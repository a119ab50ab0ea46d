"""`python -m mzplan`: the same as the `mzplan` command (the detached runner is started so)."""

from mzplan.cli.main import main

if __name__ == "__main__":
    main()
