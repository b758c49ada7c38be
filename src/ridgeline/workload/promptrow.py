"""One prompt of a file, and what is said of a row that is none."""

from dataclasses import dataclass

from ridgeline.domain.errors import BadInput

CHARACTERS_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class Entry:
    """One prompt: (role, text) in order. output_tokens: of its reply, None where not said.

    tokens: of the prompt where the file states a length; without messages, it is made to that
    length.
    """

    messages: tuple[tuple[str, str], ...]
    output_tokens: int | None = None
    tokens: int | None = None

    @property
    def planned_tokens(self) -> int:
        """As stated, else estimated from the characters."""
        if self.tokens is not None:
            return self.tokens
        return estimated(sum(len(text) for _, text in self.messages))


def estimated(characters: int) -> int:
    """Tokens of so many characters, at least 1."""
    return max(1, round(characters / CHARACTERS_PER_TOKEN))


def row_fault(file: str, row: int, what: str, fix: str = "correct or remove the row") -> BadInput:
    """What is wrong with a row (counted from 1)."""
    return BadInput(what, where=f"{file}, row {row}", fix=fix)
