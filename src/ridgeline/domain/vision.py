"""How many tokens an image is for a model: what a picture adds to a prompt.

Known for the Qwen VL families, whose rule is in their image processor: sides are rounded to whole
patches, the area is kept within limits, and `merge` x `merge` patches become one token. For other
models somebody has to say it.
"""

import math
from dataclasses import dataclass

from ridgeline.domain.errors import BadInput
from ridgeline.domain.workload import Images

MARKERS = 2  # tokens that open and close an image in the prompt


@dataclass(frozen=True, slots=True)
class ImageGrid:
    """A model's rule: `side` pixels of width and height a token, area within `least` and `most`.

    side: patch size x merge size. least, most: pixels, of the image processor's configuration.
    """

    side: int
    least: int
    most: int

    def tokens(self, width: int, height: int) -> int:
        """Tokens of one image (pixels), without the markers around it."""
        side = self.side
        across, down = (max(side, round(v / side) * side) for v in (width, height))
        if across * down > self.most:
            shrink = math.sqrt(width * height / self.most)
            across, down = (
                max(side, math.floor(v / shrink / side) * side) for v in (width, height)
            )
        elif across * down < self.least:
            grow = math.sqrt(self.least / (width * height))
            across, down = (math.ceil(v * grow / side) * side for v in (width, height))
        return across // side * (down // side)


def image_tokens(images: Images, grid: ImageGrid | None, model: str) -> int:
    """Tokens that the images add to each prompt: `images.tokens` each where given, else the grid's.

    Raises BadInput where neither is known.
    """
    if images.tokens is not None:
        return images.count * images.tokens
    if grid is None:
        raise BadInput(
            f"how many tokens an image is for {model} is not known here",
            where="prompts.images",
            fix="say it: images: {..., tokens: N}, from the usage that a server reports",
        )
    return images.count * (grid.tokens(images.width, images.height) + MARKERS)
