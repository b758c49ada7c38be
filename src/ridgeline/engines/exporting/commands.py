"""The engine's command line in a deployment's file, held against the configuration's."""

from collections.abc import Iterator, Sequence

from ridgeline.domain.secrets import secret_in_words
from ridgeline.engines.exporting.deployment import Deployment

_ADDRESS = ("--host", "--port")  # where it listens is the platform's business


def leaked_problems(words: Sequence[str], where: str) -> Iterator[str]:
    """A secret among the words, by the name under which it stands."""
    leaked = secret_in_words(words)
    if leaked is not None:
        yield f"a secret stands in clear: {where}: {leaked}; vLLM takes its key from VLLM_API_KEY"


def command_problems(words: Sequence[str], wanted: Deployment, where: str) -> Iterator[str]:
    """What differs from `vllm serve MODEL FLAGS`: program, model, flags missing, other or added."""
    have = [str(w) for w in words]
    place = next((i for i, w in enumerate(have) if w == "serve"), -1)
    program = have[: place + 1]
    if [w.rsplit("/", 1)[-1] for w in program[-2:]] != ["vllm", "serve"]:
        yield f"{where}: it does not run 'vllm serve' but {' '.join(have[:2]) or 'nothing'}"
        return
    rest = have[place + 1 :]
    model = rest[0] if rest and not rest[0].startswith("--") else None
    if model != wanted.model:
        yield f"{where}: it serves {model or 'no model'}, the configuration {wanted.model}"
    found, twice = _options(rest)
    expected, _ = _options(wanted.command[2:])
    for flag in twice:
        yield f"{where}: {flag} stands there more than once"
    for flag, value in expected.items():
        if flag not in found:
            yield f"{where}: {flag} is missing, the configuration has {flag} {value}".rstrip()
        elif found[flag] != value:
            yield f"{where}: {flag} {found[flag]}, the configuration has {value or 'no value'}"
    for flag, value in found.items():
        if flag not in expected and flag not in _ADDRESS:
            words = f"{flag} {value}".rstrip()
            yield f"{where}: {words} is not in the configuration that was measured"


def _options(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Flag -> what follows it, as one text; and the flags that stand there twice.

    vLLM takes `--max_num_seqs` and `--max-num-seqs` alike.
    """
    found: dict[str, str] = {}
    twice: list[str] = []
    flag = None
    for word in words:
        if word.startswith("--"):
            flag, equals, value = word.partition("=")
            flag = flag.replace("_", "-")
            if flag in found:
                twice.append(flag)
            found[flag] = value if equals else ""
        elif flag is not None:
            found[flag] = f"{found[flag]} {word}".strip()
    return found, twice
