import sys
from pathlib import Path

# `validation` is no part of the installed package: it stands beside `src`.
sys.path.insert(0, str(Path(__file__).parents[2]))
