"""Ridgeline's load client beside others, against the same servers: how fast, and how true.

    python -m benchmarks.client [--minutes M] [--tools NAME...] [--write docs/client.md]

It sets the other tools up in environments of their own in the user's cache, and goes on where an
earlier call stopped (--fresh begins anew). A tool that cannot be set up is reported with the
reason; a measurement that fails twice stands in the tables as failed, with the tool's words. Exit
code 0: the table is whole; 3: some measurements are left or failed.
"""

import argparse
import shutil
import sys
import time
from pathlib import Path

from benchmarks.client.measuring import Session, order
from benchmarks.client.tables import markdown, put


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.client",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, help="begin no measurement that would end later")
    parser.add_argument("--tools", nargs="+", metavar="NAME", help="only these [all]")
    parser.add_argument("--rounds", type=int, default=5, help="repeats of the rates")
    parser.add_argument("--only", choices=("rate", "truth"), help="only this half")
    parser.add_argument("--out", type=Path, default=Path("runs/bench-client"))
    parser.add_argument("--fresh", action="store_true", help="forget what --out holds")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the tables into this page")
    parser.add_argument("--note", help="a sentence about the machine, for the page")
    options = parser.parse_args()
    until = None if options.minutes is None else time.monotonic() + options.minutes * 60
    if options.fresh:
        shutil.rmtree(options.out, ignore_errors=True)
    session = Session(options.out)
    wanted = options.tools or list(session.tools)
    unknown = sorted(set(wanted) - set(session.tools))
    if unknown:
        parser.error(f"no tool {unknown[0]!r}; there are {', '.join(session.tools)}")
    ready = session.prepare(wanted)
    if options.note is not None:
        session.results["note"] = options.note
    truthful = [name for name in ready if session.tools[name].truth]
    steps = [
        step for step in order(ready, truthful, options.rounds) if options.only in (None, step.part)
    ]
    left = session.measure(steps, until)
    text = markdown(session.results, session.tools)
    print(text)
    (options.out / "results.md").write_text(text)
    if options.write:
        options.write.write_text(put(options.write.read_text(), text))
    failed = [s.key for s in steps if (session.results["steps"].get(s.key) or {}).get("error")]
    if left or failed:
        what = [f"{left} measurements are left"] if left else []
        what += [f"{len(failed)} failed ({failed[0]})"] if failed else []
        more = ": the same command goes on from here" if left else ", told under the tables"
        print(f"{' and '.join(what)}{more}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
