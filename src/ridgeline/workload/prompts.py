"""Text of a wanted number of tokens, without a tokenizer, and never the same beginning twice.

Prompts are made of short common words, which most tokenizers turn into one token each. How many
tokens a server really counts is fitted from its own `usage.prompt_tokens` before a run.
"""

import bisect
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ridgeline.domain.workload import Workload
from ridgeline.workload.schedule import Segment, stream

# 256 words: one byte of a number chooses one.
WORDS = tuple(
    """
    the of and to in is that for it as was with be by on not he his but at are this have from or
    had an they which one you were all her she there would their we him been has when who will no
    more if out so up said what its about than into them can only other time new some could these
    two may first then do any like my now over such our man me even most made after also did many
    off before must well back through years much where your way down should because long each just
    state those people too mr how little good world make very year still see own work men day get
    here old life both between being under three never know same last another while us might great
    go come since against right came take used himself few house use place during high without
    again home around small however found part school thought went say general once upon war every
    left got united number course until always away something fact water less public put think
    almost hand enough took far head yet better set told nothing night end called why find going
    look asked later point knew city next program business give group toward days young let room
    word big side kind four face eyes table area white best need form hold free line past rest
    turn money full road early open light keep along half door book read town wall move real north
    """.split()  # noqa: SIM905 (a column of 256 quoted words would be unreadable)
)
# Tokens that one of these short words can cost. Characters as tokens make about 5; below, whole
# phrases would have to be one token, or the count is not of this prompt.
LEAST_PER_WORD, MOST_PER_WORD = 0.1, 20.0
HEAD_WORDS = 8  # 64 bits make a prompt's beginning its own
_MASK = (1 << 64) - 1
_MIN_FILLER = 1 << 15


def _mix(value: int) -> int:
    """A bijection of 64-bit numbers that spreads every bit (the finaliser of SplitMix64)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


@dataclass(frozen=True, slots=True)
class TokenFit:
    """What a server counts for our text: tokens = overhead_tokens + tokens_per_word * words.

    The overhead is the chat template. `drift_tokens` is the largest miss of the fit on its own
    samples. `costs`: the tokens of each of WORDS, where the server let itself be asked; then a
    prompt is made to the token.
    """

    tokens_per_word: float = 1.0
    overhead_tokens: float = 0.0
    drift_tokens: float = 0.0
    costs: tuple[int, ...] | None = None

    def tokens_of(self, text: str) -> float:
        """What the server would count for a text of our words."""
        words = text.split()
        if self.costs is not None:
            by_word = dict(zip(WORDS, self.costs, strict=True))
            return self.overhead_tokens + sum(by_word.get(word, 1) for word in words)
        return self.overhead_tokens + self.tokens_per_word * len(words)

    def words(self, tokens: int) -> int:
        """Words for a whole prompt of that many tokens, at least 1."""
        return max(1, round((tokens - self.overhead_tokens) / self.tokens_per_word))


def fit_tokens(samples: Sequence[tuple[int, int]]) -> TokenFit:
    """Least-squares line through (words, prompt tokens); needs two different word counts.

    Texts of equally many words differ in tokens by the square root of their number, so a sample
    weighs as the inverse of it: the template's constant is what the short ones say, and the long
    ones say how many tokens a word is.

    Raises ValueError when the counts do not grow with the words as those of a tokenizer do.
    """
    words = np.array([s[0] for s in samples], dtype=np.float64)
    tokens = np.array([s[1] for s in samples], dtype=np.float64)
    weights = 1 / words
    middle, height = (float(np.average(x, weights=weights)) for x in (words, tokens))
    spread = words - middle
    if not (words != words[0]).any():
        raise ValueError("two different word counts are needed")
    slope = float((weights * spread * tokens).sum() / (weights * spread * spread).sum())
    if not LEAST_PER_WORD <= slope <= MOST_PER_WORD:
        raise ValueError(
            "the server's usage.prompt_tokens does not depend on the prompt as tokens do"
            f" ({', '.join(f'{t} for {w} words' for w, t in samples)})"
        )
    overhead = height - slope * middle
    misses = np.abs(tokens - overhead - slope * words)
    return TokenFit(slope, overhead, float(misses.max()))


class PromptMaker:
    """Makes the prompts of one run; the same arguments make the same text.

    salt: of the run. Prompts of two runs, and of two requests, differ from their first words on:
    a bijection of the request's identity, keyed by the salt, chooses the first eight words. A
    shared prefix is salted too, and is the same for all requests of its group. The words after
    the beginning are a stretch of one long random text of the workload's seed, so a prompt of
    32 000 tokens costs a copy. vocabulary: 256 token ids in place of the words; a prompt then is
    the inside of a JSON list of ids, of exactly the length that is asked for.
    """

    def __init__(
        self,
        workload: Workload,
        salt: str,
        fit: TokenFit | None = None,
        vocabulary: Sequence[int] | None = None,
    ) -> None:
        assert vocabulary is None or len(vocabulary) == len(WORDS)
        self.vocabulary = vocabulary
        self._words, self._joint = WORDS, " "
        if vocabulary is not None:
            self._words, self._joint = tuple(map(str, vocabulary)), ", "
            fit = None
        self._heads = tuple(word.encode() for word in self._words)
        self._blank = self._joint.encode()
        self.fit = fit if fit is not None else TokenFit()
        self.salt = salt
        self._key = self._number(f"request:{salt}")
        self._prefixes: dict[int, tuple[int, bytes]] = {}  # key -> (words, text)
        self._word_counts: dict[int, int] = {}  # tokens of a prompt -> words
        longest = self.fit.words(workload.longest_own_part)
        self._costs = (
            None if self.fit.costs is None else dict(zip(WORDS, self.fit.costs, strict=True))
        )
        self._fill(stream(workload.seed, "prompt-words"), max(_MIN_FILLER, 2 * longest))

    @staticmethod
    def _number(text: str) -> int:
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")

    def _fill(self, rng: np.random.Generator, words: int) -> None:
        """Make the long text and note where each word starts."""
        pieces = [self._words[i] for i in rng.integers(0, len(WORDS), size=words)]
        joint = len(self._joint)
        lengths = np.fromiter((len(w) + joint for w in pieces), dtype=np.int64, count=words)
        self._filler = (self._joint + self._joint.join(pieces)).encode()
        self._starts = [0, *np.cumsum(lengths).tolist()]
        if self._costs is not None:
            costs = np.array([self._costs[word] for word in pieces])
            self._tokens = [0, *np.cumsum(costs).tolist()]
            self._single = [w for w, cost in self._costs.items() if cost == 1]

    def _stretch(self, number: int, words: int) -> bytes:
        """`words` words, the first eight of them spelling `number`."""
        heads, starts = self._heads, self._starts
        first = number % (len(starts) - 1)
        end = first + words - HEAD_WORDS
        if first < end < len(starts):  # in one piece, as nearly all
            own = self._blank.join([heads[byte] for byte in number.to_bytes(8, "big")])
            return own + self._filler[starts[first] : starts[end]]
        spelled = number.to_bytes(8, "big")[: min(words, HEAD_WORDS)]
        head = [heads[byte] for byte in spelled]
        parts = [self._blank.join(head)]
        rest, last = words - len(head), len(starts) - 1
        while rest > 0:
            end = min(first + rest, last)
            parts.append(self._filler[starts[first] : starts[end]])
            rest -= end - first
            first = 0
        return b"".join(parts)

    def _exactly(self, number: int, tokens: int) -> bytes:
        """Words of `tokens` tokens together, the first up to eight of them spelling `number`.

        Without a word of one token it may be short of it by less than the cheapest word.
        """
        assert self._costs is not None
        costs, words, left = self._costs, [], tokens
        for byte in number.to_bytes(8, "big"):
            if costs[WORDS[byte]] <= left:
                words.append(WORDS[byte])
                left -= costs[WORDS[byte]]
        parts = [" ".join(words).encode()]
        starts, ends, last = self._starts, self._tokens, len(self._starts) - 1
        first = number % last
        while left > 0:
            end = min(bisect.bisect_right(ends, ends[first] + left) - 1, last)
            if end == first:
                break
            parts.append(self._filler[starts[first] : starts[end]])
            left -= ends[end] - ends[first]
            if end < last:
                break
            first = 0
        for place in range(left if self._single else 0):
            parts.append(b" " + self._single[(number + place) % len(self._single)].encode())
        return b"".join(parts).lstrip() or WORDS[number & 0xFF].encode()

    def beginning(self, identity: int) -> bytes:
        """Eight words that no other request of the run has, for a text that is not ours."""
        return self._stretch(_mix((self._key + identity) & _MASK), HEAD_WORDS)

    def encoded(self, identity: int, prompt_tokens: int, prefix: Sequence[Segment] = ()) -> bytes:
        """The prompt as ASCII bytes that need no JSON escapes.

        identity: unique in the run. prompt_tokens: of the whole prompt, prefix and the server's
        template included. A prompt shorter than its prefix still has one word of its own.
        """
        own = _mix((self._key + identity) & _MASK)
        if self._costs is not None:
            return self._encoded_exactly(own, prompt_tokens, prefix)
        words = self._word_counts.get(prompt_tokens)
        if words is None:
            words = self._word_counts[prompt_tokens] = self.fit.words(prompt_tokens)
        if not prefix:
            return self._stretch(own, words)
        parts, used, tokens = [], 0, 0
        for segment in prefix:
            tokens += segment.tokens
            wanted = round(tokens / self.fit.tokens_per_word) - used
            if wanted > 0:
                parts += [self._segment(segment.key, wanted), self._blank]
                used += wanted
        parts.append(self._stretch(own, max(1, words - used)))
        return b"".join(parts)

    def _encoded_exactly(self, own: int, prompt_tokens: int, prefix: Sequence[Segment]) -> bytes:
        left = max(1, prompt_tokens - round(self.fit.overhead_tokens))
        parts = []
        for segment in prefix:
            tokens = min(segment.tokens, left - 1)
            if tokens > 0:
                number = self._number(f"prefix:{segment.key}:{self.salt}")
                parts += [self._exactly(number, tokens), b" "]
                left -= tokens
        return b"".join([*parts, self._exactly(own, left)])

    def _segment(self, key: int, words: int) -> bytes:
        """A shared piece of that many words; a shorter one is the beginning of a longer one."""
        known = self._prefixes.get(key)
        if known is not None and known[0] == words:
            return known[1]
        made = self._stretch(self._number(f"prefix:{key}:{self.salt}"), words)
        self._prefixes[key] = words, made
        return made

    def text(self, identity: int, prompt_tokens: int, prefix: Sequence[Segment] = ()) -> str:
        """The prompt as text; see `encoded`."""
        return self.encoded(identity, prompt_tokens, prefix).decode("ascii")
