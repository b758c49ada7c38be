"""What the twin answers with, and which stop strings can therefore never end its answer."""

# Plain words: no character of them needs escaping in JSON.
WORDS = (
    "ridge", "line", "slope", "roof", "bound", "peak", "batch", "step", "block", "cache",
    "queue", "chunk", "graph", "kernel", "prompt", "token", "layer", "head", "weight", "stream",
)  # fmt: skip


def words_from(done: int, count: int) -> str:
    """The `count` words after `done` earlier ones, with the blank that parts them from those."""
    words = " ".join(WORDS[k % len(WORDS)] for k in range(done, done + count))
    return f" {words}" if done else words


def never_said(stop: object) -> bool:
    """Whether `stop` (a string or a list of them) holds only what the twin's words cannot make."""
    for one in stop if isinstance(stop, list) else [stop]:
        if not isinstance(one, str) or not one:
            return False
        # as many words as it has characters, and once around: wherever it may begin
        if one in words_from(0, len(one) + 2 * len(WORDS)):
            return False
    return True
