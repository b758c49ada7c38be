"""Prompts of a file as JSON, made ready once each; only their beginning differs per request."""

import json
from collections.abc import Sequence

from ridgeline.domain.workload import PromptFile
from ridgeline.workload.promptfiles import entries_of
from ridgeline.workload.promptrow import Entry
from ridgeline.workload.prompts import PromptMaker
from ridgeline.workload.schedule import Turn

MOST_READY_BYTES = 256 << 20  # made ready before the run; the rest when it is sent first


class FilePrompts:
    """The prompts of one file, for chat or for completions.

    A salted one has eight words of its own before its first user text (before all of it for
    completions): a system text that all share is then found in a prefix cache, and nothing else.
    """

    def __init__(
        self, file: PromptFile, maker: PromptMaker, *, chat: bool, pictured: bool = False
    ) -> None:
        self._entries = entries_of(file)
        self._maker, self._chat, self._salted = maker, chat, file.salted
        self._ready: dict[int, tuple[bytes, bytes, bytes]] = {}
        self.carried = file.carried  # a turn of a session is its row, past included
        ahead, size = self._messages if chat else self._text, 0
        for number, entry in enumerate(self._entries):  # before the run, so that no send waits
            if not entry.messages or size > MOST_READY_BYTES:
                break
            self._ready[number] = ahead(entry, pictured=pictured)
            size += sum(map(len, self._ready[number]))

    def value(self, entry: int, identity: int, images: bytes = b"") -> list[bytes]:
        """The value of `messages` (with images beside the first user text) or of `prompt`."""
        known = self._ready.get(entry)
        if known is None:
            make = self._messages if self._chat else self._text
            known = self._ready[entry] = make(self._entries[entry], pictured=bool(images))
        before, text, after = known
        own = self._maker.beginning(identity) + b" " if self._salted else b""
        return [before, own, text, images, after]

    def talk(self, past: Sequence[Turn], entry: int, identity: int) -> list[bytes]:
        """The value of a session's next turn: what was said, with the server's replies, and this.

        Only the first turn has words of its own at its beginning: the talk stays one talk.
        """
        said: list[bytes] = []
        for number, turn in enumerate(past):
            assert turn.entry is not None
            said += [*self._part(turn.entry, turn.identity, first=not number), self._joint]
            said += [self._reply(turn.reply or ""), self._joint]
        own = self._part(entry, identity, first=not past)
        around = (b"[", b"]") if self._chat else (b'"', b'"')
        return [around[0], *said, *own, around[1]]

    @property
    def _joint(self) -> bytes:
        return b", " if self._chat else b"\\n\\n"

    def _reply(self, text: str) -> bytes:
        told = json.dumps({"role": "assistant", "content": text}) if self._chat else _inside(text)
        return told.encode()

    def _part(self, entry: int, identity: int, *, first: bool) -> list[bytes]:
        """One turn's new part, without the brackets or quotes around the whole."""
        if first:
            before, own, text, _, after = self.value(entry, identity)
            return [before[1:], own, text, after[:-1]]
        if not self._chat:
            said = self._entries[entry].messages
            return [_inside("\n\n".join(text for _, text in said)).encode()]
        told = (
            json.dumps({"role": role, "content": text})
            for role, text in self._entries[entry].messages
        )
        return [", ".join(told).encode()]

    @staticmethod
    def _text(entry: Entry, *, pictured: bool) -> tuple[bytes, bytes, bytes]:
        assert not pictured, "completions take no images"
        whole = "\n\n".join(text for _, text in entry.messages)
        return b'"', _inside(whole).encode(), b'"'

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


def _inside(text: str) -> str:
    """A JSON text without its quotes."""
    return json.dumps(text)[1:-1]
