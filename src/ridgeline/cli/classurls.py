"""Servers for one class of a bench alone: the `url` of `--class`."""

from collections.abc import Mapping, Sequence

from ridgeline.domain.baseurl import checked_url
from ridgeline.domain.errors import BadInput
from ridgeline.domain.knobs import Knobs, Pool

REST = "others"  # the pool of the classes without a url: the servers that the bench names


def class_urls(texts: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The texts of `--class` without their `url=...`, and the URL of each class that has one.

    Raises BadInput for what is no URL of a server, or holds a password: before anything is stored.
    """
    left, found = [], {}
    for text in texts:
        name, colon, rest = text.partition(":")
        parts = [part.strip() for part in rest.split(",")]
        urls = [part.partition("=")[2] for part in parts if part.startswith("url=")]
        if len(urls) > 1 or "" in urls:
            what = "url is given twice" if len(urls) > 1 else "url is empty"
            raise BadInput(what, where=f"--class {name}", fix="url=http://HOST:PORT")
        if urls:
            found[name.strip()] = checked_url(urls[0], f"--class {name.strip()}")
        left.append(name + colon + ",".join(p for p in parts if not p.startswith("url=")))
    return left, found


def class_pools(
    own: Mapping[str, str], names: Sequence[str], urls: tuple[str, ...], knobs: Knobs
) -> tuple[Pool, ...]:
    """A pool for each URL that classes have to themselves, one for the rest; none without any."""
    if not own:
        return ()
    pools = [
        Pool(next(n for n in names if own.get(n) == url),
             tuple(n for n in names if own.get(n) == url), knobs, (url,))
        for url in dict.fromkeys(own.values())
    ]  # fmt: skip
    rest = tuple(name for name in names if name not in own)
    if rest:
        pools.append(Pool(REST if REST not in names else f"{REST}-", rest, knobs, urls))
    return tuple(pools)
