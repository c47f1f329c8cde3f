"""Trains a two-layer neural network on the digits beside it, with nothing but the standard library.

Parameters (environment): TRAINSHED_PARAM_EPOCHS, TRAINSHED_PARAM_SEED. Without a seed the name of the
Trial decides, so that the Trials of one Job learn differently and each of them can be repeated.
Writes outputs/model.json (weights) and outputs/metrics.json (loss curve and held-out accuracy).
"""

from __future__ import annotations

import csv
import json
import math
import os
import random
import sys
import time
import zlib
from operator import mul
from pathlib import Path

PIXELS, HIDDEN, LABELS = 64, 32, 10
RATE, DECAY = 0.04, 0.85

Sample = tuple[list[float], int]
Layer = list[list[float]]


class Network:
    """64 pixels, 32 rectified units, 10 labels. The last weight of every row is its bias."""

    def __init__(self, chance: random.Random) -> None:
        def layer(rows: int, columns: int) -> Layer:
            spread = math.sqrt(6 / (rows + columns))
            return [[(2 * chance.random() - 1) * spread for _ in range(columns)] + [0.0] for _ in range(rows)]

        self.hidden = layer(HIDDEN, PIXELS)
        self.output = layer(LABELS, HIDDEN)

    def forward(self, pixels: list[float]) -> tuple[list[float], list[float]]:
        """The hidden units (and a 1 for the bias) and the probability of each label."""
        units = [max(0.0, sum(map(mul, row, pixels))) for row in self.hidden] + [1.0]
        scores = [sum(map(mul, row, units)) for row in self.output]
        top = max(scores)
        powers = [math.exp(score - top) for score in scores]
        total = sum(powers)
        return units, [power / total for power in powers]

    def learn(self, pixels: list[float], label: int, rate: float) -> float:
        """One step of gradient descent on one sample; returns its loss before the step."""
        units, chances = self.forward(pixels)
        loss = -math.log(max(chances[label], 1e-12))
        errors = chances
        errors[label] -= 1.0
        back = [0.0] * HIDDEN
        for number, error in enumerate(errors):
            row = self.output[number]
            step = rate * error
            back = [sofar + error * weight for sofar, weight in zip(back, row)]
            self.output[number] = [weight - step * unit for weight, unit in zip(row, units)]
        for number, error in enumerate(back):
            if units[number] > 0.0:
                step, row = rate * error, self.hidden[number]
                self.hidden[number] = [weight - step * pixel for weight, pixel in zip(row, pixels)]
        return loss

    def accuracy(self, samples: list[Sample]) -> float:
        """The share of samples whose likeliest label is the right one."""
        right = 0
        for pixels, label in samples:
            chances = self.forward(pixels)[1]
            right += chances.index(max(chances)) == label
        return right / len(samples)


def load(path: Path) -> dict[str, list[Sample]]:
    """The samples of each split; pixels are scaled to 0..1 and followed by a 1 for the bias."""
    samples: dict[str, list[Sample]] = {"train": [], "heldout": []}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            pixels = [int(digit, 16) / 15 for digit in row["pixels"]] + [1.0]
            samples[row["split"]].append((pixels, int(row["label"])))
    return samples


def parameter(name: str, default: int, least: int) -> int:
    """A whole number from the environment; anything else ends the program with a sentence."""
    text = os.environ.get(f"TRAINSHED_PARAM_{name.upper()}", str(default))
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        sys.exit(f"the parameter {name} must be a whole number from {least}, not {text!r}")
    return value


def say(line: str) -> None:
    """Print at once: output to a log is otherwise held back until a buffer is full."""
    print(line, flush=True)


def main() -> None:
    """Train, tell after each epoch, write the results."""
    name = os.environ.get("TRAINSHED_TRIAL_NAME", "")
    epochs, seed = parameter("epochs", 12, 1), parameter("seed", zlib.crc32(name.encode()), 0)
    chance = random.Random(seed)
    samples = load(Path(__file__).with_name("digits.csv"))
    train, held_out = samples["train"], samples["heldout"]
    say(f"{len(train)} samples to learn from, {len(held_out)} held out; {epochs} epochs, seed {seed}")
    network, curve = Network(chance), []
    for epoch in range(1, epochs + 1):
        start = time.perf_counter()
        chance.shuffle(train)
        rate = RATE * DECAY ** (epoch - 1)
        loss = sum(network.learn(pixels, label, rate) for pixels, label in train) / len(train)
        accuracy = network.accuracy(held_out)
        curve.append({"epoch": epoch, "loss": round(loss, 5), "heldout_accuracy": round(accuracy, 5)})
        took = time.perf_counter() - start
        say(f"epoch {epoch:2}/{epochs}  loss {loss:.4f}  held-out accuracy {accuracy:6.2%}  {took:.2f} s")
    folder = Path("outputs")
    folder.mkdir(exist_ok=True)
    weights = {
        name: [[round(weight, 5) for weight in row] for row in layer]
        for name, layer in (("hidden", network.hidden), ("output", network.output))
    }
    (folder / "model.json").write_text(json.dumps(weights) + "\n")
    metrics = {
        "heldout_accuracy": curve[-1]["heldout_accuracy"],
        "epochs": epochs,
        "seed": seed,
        "curve": curve,
    }
    (folder / "metrics.json").write_text(json.dumps(metrics, indent=2) + "\n")
    say("wrote outputs/model.json and outputs/metrics.json")


if __name__ == "__main__":
    main()
