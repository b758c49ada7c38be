"""Prompts of a file as JSON, made ready once each; only their beginning differs per request."""

import json

from ridgeline.domain.workload import PromptFile
from ridgeline.workload.promptfiles import Entry, entries_of
from ridgeline.workload.prompts import PromptMaker


class FilePrompts:
    """The prompts of one file, for chat or for completions.

    A salted one has eight words of its own before its first user text (before all of it for
    completions): a system text that all share is then found in a prefix cache, and nothing else.
    """

    def __init__(self, file: PromptFile, maker: PromptMaker, *, chat: bool) -> None:
        self._entries = entries_of(file)
        self._maker, self._chat, self._salted = maker, chat, file.salted
        self._ready: dict[int, tuple[bytes, bytes, bytes]] = {}

    def value(self, entry: int, identity: int, images: bytes = b"") -> list[bytes]:
        """The value of `messages` (with images beside the first user text) or of `prompt`."""
        known = self._ready.get(entry)
        if known is None:
            make = self._messages if self._chat else self._text
            known = self._ready[entry] = make(self._entries[entry], pictured=bool(images))
        before, text, after = known
        own = self._maker.beginning(identity) + b" " if self._salted else b""
        return [before, own, text, images, after]

    @staticmethod
    def _text(entry: Entry, *, pictured: bool) -> tuple[bytes, bytes, bytes]:
        assert not pictured, "completions take no images"
        whole = "\n\n".join(text for _, text in entry.messages)
        return b'"', json.dumps(whole)[1:-1].encode(), b'"'

    @staticmethod
    def _messages(entry: Entry, *, pictured: bool) -> tuple[bytes, bytes, bytes]:
        """Up to the first user text, that text, and the rest."""
        place = next((i for i, (role, _) in enumerate(entry.messages) if role == "user"), 0)
        listed = [json.dumps({"role": role, "content": text}) for role, text in entry.messages]
        role, text = entry.messages[place]
        before = "[" + "".join(f"{one}, " for one in listed[:place])
        before += f'{{"role": {json.dumps(role)}, "content": '
        before += '[{"type": "text", "text": "' if pictured else '"'
        rest = "".join(f", {one}" for one in listed[place + 1 :])
        end = '"}' if pictured else '"'
        after = "]}" if pictured else "}"
        return before.encode(), (json.dumps(text)[1:-1] + end).encode(), f"{after}{rest}]".encode()
