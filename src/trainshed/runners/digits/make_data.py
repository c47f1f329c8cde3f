"""Makes ``digits.csv``: 3,000 handwriting-like digits of 8 x 8 grey pixels, drawn here from scratch.

Each digit is a line through a few points. Every sample moves the points, tilts, scales and shifts the line,
draws it with a pen of random width and adds noise. Nothing in it comes from another data set. The same seed
gives the same file, byte for byte, on every Python: only ``random.random`` is used.

Columns: ``split`` (``train`` or ``heldout``), ``label`` (0-9), ``pixels`` (64 hexadecimal digits, by row).
"""

import math
import random
from itertools import pairwise
from pathlib import Path

SIDE = 8
PER_DIGIT = 300
HELD_OUT_PER_DIGIT = 60
SEED = 20260101

# The points of each digit's line in percent of the square, x before y, from the top left.
LINES = {
    label: [(int(point[:2]) / 100, int(point[2:]) / 100) for point in points.split()]
    for label, points in enumerate(
        (
            "5010 3020 2450 3080 5090 7080 7650 7020 5010",
            "3328 5410 5490",
            "2530 3215 5010 7017 7334 6253 2590 7890",
            "2515 5010 7222 6741 4548 7258 7478 5090 2484",
            "6290 6210 2265 8265",
            "7410 3210 2846 5542 7457 7280 5090 2584",
            "6512 4030 2760 3585 5590 7375 6557 4555 2968",
            "2210 7810 4590",
            "5047 3030 5010 7030 5047 2670 5090 7470 5047",
            "7135 6014 4013 2830 3646 5847 7130 6860 5090",
        )
    )
}


def draw(label: int, chance: random.Random) -> str:
    """One sample of ``label`` as 64 hexadecimal digits."""

    def around(center: float, spread: float) -> float:
        return center + (2 * chance.random() - 1) * spread

    tilt, slant = around(0, 0.22), around(0, 0.18)
    width, height = around(0.9, 0.16), around(0.92, 0.12)
    right, down = around(0, 0.09), around(0, 0.07)
    pen = around(0.085, 0.025)
    points = []
    for x, y in LINES[label]:
        across, along = (around(x, 0.05) - 0.5) * width, (around(y, 0.05) - 0.5) * height
        points.append((0.5 + right + across - (tilt + slant) * along, 0.5 + down + along + tilt * across))
    pixels = []
    for row in range(SIDE):
        for column in range(SIDE):
            place = ((column + 0.5) / SIDE, (row + 0.5) / SIDE)
            away = min(distance(place, a, b) for a, b in pairwise(points))
            ink = min(1.0, max(0.0, (pen + 0.075 - away) / 0.1)) + around(0, 0.16)
            pixels.append(f"{min(15, max(0, round(15 * ink))):x}")
    return "".join(pixels)


def distance(place: tuple[float, float], a: tuple[float, float], b: tuple[float, float]) -> float:
    """How far ``place`` is from the segment from ``a`` to ``b``."""
    (px, py), (ax, ay), (bx, by) = place, a, b
    length = (bx - ax) ** 2 + (by - ay) ** 2
    along = (px - ax) * (bx - ax) + (py - ay) * (by - ay)
    part = min(1.0, max(0.0, along / length)) if length else 0.0
    return math.sqrt((px - ax - part * (bx - ax)) ** 2 + (py - ay - part * (by - ay)) ** 2)


def rows() -> list[str]:
    """All lines of the file, the heading first."""
    chance = random.Random(SEED)
    made = ["split,label,pixels"]
    for number in range(PER_DIGIT):
        split = "heldout" if number < HELD_OUT_PER_DIGIT else "train"
        made.extend(f"{split},{label},{draw(label, chance)}" for label in LINES)
    return made


if __name__ == "__main__":
    Path(__file__).with_name("digits.csv").write_text("\n".join(rows()) + "\n")
