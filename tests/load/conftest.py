"""Makes tests/support importable, and gives the tests of the load client a short way to drive."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
