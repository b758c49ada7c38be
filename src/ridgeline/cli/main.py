"""The command `ridgeline`: finds the verb, runs it, turns what goes wrong into one line.

A verb is a file of this folder with a function of the same name: its arguments are the options, its
docstring is the help. Only the file of the verb that is asked for is imported, and none for the
list of all verbs, which asks for no more than their names.
"""

import importlib
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

import typer

import ridgeline
from ridgeline.cli.helptext import Verb
from ridgeline.cli.output import INTERRUPTED, explain, say

# Verb -> its line in --help, whole in 80 columns; in the order of --help. Each is a module here.
VERBS = {
    "init": "Write a study file from a server's command line, or a first one.",
    "plan": "Predict on the digital twin, and rank the experiments.",
    "study": "Measure every experiment of a file, repeated and interleaved.",
    "tune": "Search for the best configuration within a budget, and prove it.",
    "bench": "Measure the OpenAI-compatible server at a URL under load.",
    "knee": "Find the saturation knee, and the most load inside targets.",
    "quality": "Judge whether a candidate still answers as the reference does.",
    "doctor": "Say what binds a running server, and what to turn.",
    "watch": "Show a running server's figures live, and record them.",
    "report": "Show results, and write them as one page or as Markdown.",
    "export": "Write a configuration for Kubernetes, compose and others.",
    "serve": "Run a configuration on this host, behind one URL.",
    "twin": "Serve the digital twin as an OpenAI-compatible server.",
    "calibrate": "Fit the twin's host constants to measured runs.",
    "knobs": "List the options of the vLLM that is installed.",
    "schema": "Print the JSON Schema of a study file or of a result.",
}


# Verb -> a command that a stranger can type, below its help.
EXAMPLES = {
    "init": "ridgeline init --from 'vllm serve Qwen/Qwen3-4B' --gpu H100-SXM",
    "plan": "ridgeline plan study.yaml --explain",
    "study": "ridgeline study study.yaml --out runs/mine",
    "tune": "ridgeline tune study.yaml --gpu-minutes 60",
    "bench": "ridgeline bench http://127.0.0.1:8000 --users 16 --slo ttft_p95_ms=500",
    "knee": "ridgeline knee http://127.0.0.1:8000 --slo ttft_p95_ms=500,itl_p95_ms=20",
    "quality": "ridgeline quality http://127.0.0.1:8000 http://127.0.0.1:8001",
    "doctor": "ridgeline doctor http://127.0.0.1:8000 --log vllm.log",
    "watch": "ridgeline watch http://127.0.0.1:8000 http://127.0.0.1:8001 --record kept",
    "report": "ridgeline report runs/mine --html report.html",
    "export": "ridgeline export study.yaml --to kubernetes --experiment final",
    "serve": "ridgeline serve study.yaml --experiment final",
    "twin": "ridgeline twin --port 8000 --fixed-ttft-ms 100 --fixed-itl-ms 10",
    "calibrate": "ridgeline calibrate runs/mine --json calibration.json",
    "knobs": "ridgeline knobs seqs kv_cache",
    "schema": "ridgeline schema --out study.schema.json",
}
START = (
    "A server that runs: doctor says why it is slow, bench and knee measure it. A choice between"
    " configurations: init writes a study file, plan predicts it without a GPU, study and tune"
    " measure it. `ridgeline VERB --help` has an example of each.\n\n"
    "Exit code 0: done. 1: a target or a check was missed. 2: bad input. 3: void, or not"
    " completed. 130: stopped by Ctrl-C or SIGTERM."
)


def _version(asked: bool) -> None:
    if asked:
        print(f"ridgeline {ridgeline.__version__}")
        raise typer.Exit


def build(arguments: Sequence[str]) -> typer.Typer:
    """The application: with the verb that the arguments ask for, or with the names of all of them.

    Without a verb in front there is nothing to run: only help, the version, or a word that is none.
    """
    app = typer.Typer(
        name="ridgeline",
        help="Find the serving configuration that carries your traffic inside its latency targets"
        " at the lowest cost per token, and prove it.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        epilog=START,
    )
    app.callback()(_options)
    asked = arguments[0] if arguments else ""
    if asked in VERBS:
        module = importlib.import_module(f"ridgeline.cli.{asked}")
        app.command(asked, cls=Verb, short_help=VERBS[asked], epilog=_example(asked))(
            getattr(module, asked)
        )
        return app
    for verb, line in VERBS.items():
        app.command(verb, short_help=line)(_named)
    return app


def _named() -> None:
    """Stands for a verb in the list of all of them; what comes after `--` is none."""
    raise typer.BadParameter("give the verb first: `ridgeline VERB ...`")


def _example(verb: str) -> str:
    return f"\b\nExample:\n  {EXAMPLES[verb]}"


def _options(
    version: bool = typer.Option(
        False, "--version", is_eager=True, callback=_version, help="Print the version and stop."
    ),
) -> None:
    """What stands before the verb."""


def run(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit code."""
    try:
        result = build(arguments)(
            args=list(arguments), prog_name="ridgeline", standalone_mode=False
        )
    except (KeyboardInterrupt, typer.Abort):
        say("ridgeline: interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone; the interpreter must not complain at its end either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        return _usage(error) if hasattr(error, "format_message") else explain(error)
    return result if isinstance(result, int) else 0


def _usage(error: Any) -> int:
    """A wrong command line, as typer tells it, in one line; bare `ridgeline` shows the help."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "ridgeline"
    message = error.format_message().strip()
    if type(error).__name__ == "NoArgsIsHelpError":
        print(message)
        return 2
    say(f"ridgeline: {' '.join(message.split())} (see `{path} --help`)")
    return 2


def main() -> None:
    """Entry point of the console script."""
    code = run(sys.argv[1:])
    # Only the interpreter's own end is left: a late Ctrl-C would replace the exit code by a signal.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(code)


if __name__ == "__main__":
    main()
