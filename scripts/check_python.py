"""Stop a too old Python with one clear line before anything is installed."""

import sys

if sys.version_info < (3, 11):  # noqa: UP036  this file is run by whatever python3 there is
    found = ".".join(map(str, sys.version_info[:3]))
    sys.exit(
        f"Ridgeline needs Python 3.11 or newer, this is {found}: run `make PYTHON=python3.11 ...`"
    )
try:
    import ensurepip  # noqa: F401  Debian splits it off; without it `python3 -m venv` fails late and darkly
except ImportError:
    sys.exit("This Python has no ensurepip: install it (Debian: apt-get install python3-venv)")
