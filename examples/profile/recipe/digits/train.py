"""Softmax regression on 8 x 8 digits, with nothing but the standard library."""

import csv
import json
import math
import random
from operator import mul

LABELS, PIXELS = 10, 64


def main(*, parameters, inputs, outputs):
    """Train on the input ``data``; write ``model.json`` and ``metrics.json`` into the folder ``outputs``."""
    chance = random.Random(parameters["seed"])
    rate = float(parameters["learning_rate"])
    train = load(inputs["data"])
    held_out = load(inputs.get("heldout", []))
    weights = [[0.0] * (PIXELS + 1) for _ in range(LABELS)]
    curve = []
    for epoch in range(1, parameters["epochs"] + 1):
        chance.shuffle(train)
        loss = sum(learn(weights, pixels, label, rate) for pixels, label in train) / len(train)
        found = {"epoch": epoch, "loss": round(loss, 5)}
        if held_out:
            found["heldout_accuracy"] = round(accuracy(weights, held_out), 5)
        curve.append(found)
        print(json.dumps(found), flush=True)
    (outputs / "model.json").write_text(json.dumps(weights) + "\n")
    (outputs / "metrics.json").write_text(json.dumps({**curve[-1], "samples": len(train)}) + "\n")


def load(files):
    """The samples of these CSV files: pixels from 0 to 1, followed by a 1 for the bias, and the label."""
    rows = [row for place in files for row in csv.DictReader(place.read_text().splitlines())]
    return [([int(digit, 16) / 15 for digit in row["pixels"]] + [1.0], int(row["label"])) for row in rows]


def chances(weights, pixels):
    """The probability of each label."""
    scores = [sum(map(mul, row, pixels)) for row in weights]
    powers = [math.exp(score - max(scores)) for score in scores]
    return [power / sum(powers) for power in powers]


def learn(weights, pixels, label, rate):
    """One step of gradient descent on one sample; its loss before the step."""
    found = chances(weights, pixels)
    for number, chance in enumerate(found):
        step = rate * (chance - (number == label))
        weights[number] = [weight - step * pixel for weight, pixel in zip(weights[number], pixels)]
    return -math.log(max(found[label], 1e-12))


def accuracy(weights, samples):
    """The share of samples whose likeliest label is the right one."""
    right = 0
    for pixels, label in samples:
        found = chances(weights, pixels)
        right += found.index(max(found)) == label
    return right / len(samples)
