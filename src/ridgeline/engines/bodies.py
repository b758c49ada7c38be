"""The bodies of a run's requests: the prompt of each in the form that the endpoint takes."""

import json
from collections.abc import Sequence

from ridgeline.domain.errors import BadInput
from ridgeline.domain.workload import Workload
from ridgeline.engines.fileprompts import FilePrompts
from ridgeline.load.openai import RequestForm
from ridgeline.workload.images import ImageMaker
from ridgeline.workload.prompts import PromptMaker
from ridgeline.workload.schedule import PlannedRequest, Segment

_PICTURED = b'[{"role": "user", "content": [{"type": "text", "text": "'


class Bodies:
    """Makes the body of every request of a run. endpoint: "chat" or "completions".

    Turns of a session carry the talk so far with the server's own replies: as messages for chat,
    as one text for completions.
    """

    def __init__(self, workload: Workload, endpoint: str, model: str, maker: PromptMaker) -> None:
        self._maker = maker
        self._chat = endpoint == "chat"
        self._ids = maker.vocabulary is not None
        if not self._chat and any(kind.prompts.images for kind in workload.kinds):
            raise BadInput("images can only be sent to chat", where="prompts.images")
        self._files = [
            None if (file := kind.prompts.file) is None
            else FilePrompts(
                file, maker, chat=self._chat, pictured=kind.prompts.images is not None
            )
            for kind in workload.kinds
        ]  # fmt: skip
        self._images = [
            None if (images := kind.prompts.images) is None
            else ImageMaker(images, f"{maker.salt}:{kind.name}")
            for kind in workload.kinds
        ]  # fmt: skip
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
        others = (*self._files, *self._images)
        self._plain = not self._ids and all(other is None for other in others)  # our own texts only

    @property
    def path(self) -> str:
        """Where the requests go, after the base URL."""
        return self._forms[0].path

    def parts(self, planned: PlannedRequest, identity: int) -> list[bytes]:
        """The body of one request, in pieces to be sent one after another."""
        kind = planned.traffic_class or 0
        if self._plain and not planned.past:
            text = self._maker.encoded(identity, planned.own_tokens, planned.prefix)
            return self._forms[kind].parts(text, planned.output_tokens)
        form, file, maker = self._forms[kind], self._files[kind], self._images[kind]
        images = b"" if maker is None else maker.parts(identity)
        if file is not None and planned.entry is not None:
            return form.payload(_of_file(file, planned, identity, images), planned.output_tokens)
        text = self._text(identity, planned.own_tokens, planned.prefix if not planned.past else ())
        if self._ids:
            return form.payload([b"[", text, b"]"], planned.output_tokens)
        if images:
            return form.payload([_PICTURED, text, b'"}', images, b"]}]"], planned.output_tokens)
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


def _of_file(
    file: FilePrompts, planned: PlannedRequest, identity: int, images: bytes
) -> list[bytes]:
    """The prompt of a row of a file, or of a session's turn from one."""
    assert planned.entry is not None
    if planned.session is None:
        return file.value(planned.entry, identity, images)
    if file.carried:  # all turns of a session begin with the words of its first
        return file.value(planned.entry, identity - planned.turn)
    return file.talk(planned.past, planned.entry, identity)


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
