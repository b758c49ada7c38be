"""The bodies of a run's requests: the prompt of each in the form that the endpoint takes."""

import json
from collections.abc import Sequence

from ridgeline.domain.workload import Workload
from ridgeline.load.openai import RequestForm
from ridgeline.workload.prompts import PromptMaker
from ridgeline.workload.schedule import PlannedRequest, Segment


class Bodies:
    """Makes the body of every request of a run. endpoint: "chat" or "completions".

    Turns of a session carry the talk so far with the server's own replies: as messages for chat,
    as one text for completions.
    """

    def __init__(self, workload: Workload, endpoint: str, model: str, maker: PromptMaker) -> None:
        self._maker = maker
        self._chat = endpoint == "chat"
        self._ids = maker.vocabulary is not None
        options = workload.options
        extra = {**options.sampling, **options.extra_body}
        self._forms = [
            RequestForm(
                endpoint,
                model,
                ignore_eos=kind.outputs.ignore_eos,
                extra=extra if kind.priority is None else {**extra, "priority": kind.priority},
            )
            for kind in workload.kinds
        ]

    @property
    def path(self) -> str:
        """Where the requests go, after the base URL."""
        return self._forms[0].path

    def parts(self, planned: PlannedRequest, identity: int) -> list[bytes]:
        """The body of one request, in pieces to be sent one after another."""
        form = self._forms[planned.traffic_class or 0]
        text = self._text(identity, planned.own_tokens, planned.prefix if not planned.past else ())
        if self._ids:
            return form.payload([b"[", text, b"]"], planned.output_tokens)
        if not planned.past:
            return form.parts(text, planned.output_tokens)
        said = [
            (self._text(turn.identity, turn.own_tokens, () if number else planned.prefix),
             json.dumps(turn.reply or "")[1:-1].encode())
            for number, turn in enumerate(planned.past)
        ]  # fmt: skip
        return form.payload((_messages if self._chat else _talk)(said, text), planned.output_tokens)

    def _text(self, identity: int, tokens: int, prefix: Sequence[Segment]) -> bytes:
        return self._maker.encoded(identity, tokens, prefix)


def _messages(said: Sequence[tuple[bytes, bytes]], text: bytes) -> list[bytes]:
    """The value of `messages`: what was said in turns, and the new part."""
    parts = [b"["]
    for user, reply in said:
        parts += [b'{"role": "user", "content": "', user, b'"}, ']
        parts += [b'{"role": "assistant", "content": "', reply, b'"}, ']
    return [*parts, b'{"role": "user", "content": "', text, b'"}]']


def _talk(said: Sequence[tuple[bytes, bytes]], text: bytes) -> list[bytes]:
    """The value of `prompt`: one text, each part after a blank."""
    parts = [b'"']
    for user, reply in said:
        parts += [user, b" ", reply, b" "]
    return [*parts, text, b'"']
