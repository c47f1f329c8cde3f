"""Real LoRA outputs, written by hand: what PEFT saves, without PEFT."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

BASE_MODEL = "Qwen/Qwen3-0.6B"
PAIR: Mapping[str, tuple[int, ...]] = {
    "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": (2, 4),
    "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight": (4, 2),
}


def config(**changes: Any) -> bytes:
    """An ``adapter_config.json``."""
    document = {
        "peft_type": "LORA",
        "base_model_name_or_path": BASE_MODEL,
        "r": 2,
        "lora_alpha": 4,
        "target_modules": ["q_proj"],
        "task_type": "CAUSAL_LM",
    }
    return json.dumps({**document, **changes}).encode()


def header(tensors: Mapping[str, tuple[int, ...]] = PAIR) -> tuple[dict[str, Any], int]:
    """The header's document for these F32 tensors, and how many bytes of data they have."""
    document: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in tensors.items():
        size = 4
        for dimension in shape:
            size *= dimension
        document[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    return document, end


def encode(document: Any, data: bytes, *, raw: bytes | None = None) -> bytes:
    """A safetensors file with this header, or with these bytes in its place."""
    text = json.dumps(document).encode() if raw is None else raw
    return struct.pack("<Q", len(text)) + text + data


def weights(tensors: Mapping[str, tuple[int, ...]] = PAIR, fill: int = 1) -> bytes:
    """An ``adapter_model.safetensors`` whose data is the byte ``fill``."""
    document, size = header(tensors)
    return encode(document, bytes([fill]) * size)


def adapter(folder: str = "out", fill: int = 1, **config_changes: Any) -> dict[str, bytes]:
    """The files of one adapter, by name."""
    prefix = f"{folder}/" if folder else ""
    return {
        f"{prefix}adapter_config.json": config(**config_changes),
        f"{prefix}adapter_model.safetensors": weights(fill=fill),
    }


PROGRAM = '''\
"""Trains nothing, and saves what a LoRA training saves: checkpoints on the way, the adapter at the end."""
import hashlib
import json
import os
import struct
import sys
from pathlib import Path

resume = os.environ.get("TRAINSHED_RESUME_FROM")
first = 0
if resume:
    for path in sorted(Path(resume).rglob("*")):
        if path.is_file():
            name = path.relative_to(resume).as_posix()
            print("resumed", name, hashlib.sha256(path.read_bytes()).hexdigest())
    state = Path(resume, "trainer_state.json")
    first = json.loads(state.read_text())["global_step"] if state.exists() else 0


def save(folder: Path, step: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"base_model.model.layers.0.q_proj.lora_{half}.weight" for half in "AB"]
    data = struct.pack("<8f", *(float(step + place) for place in range(8)))
    header = json.dumps(
        {
            name: {"dtype": "F32", "shape": shape, "data_offsets": [16 * place, 16 * place + 16]}
            for place, (name, shape) in enumerate(zip(names, ([1, 4], [4, 1])))
        }
    ).encode()
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + data)
    config = {"peft_type": "LORA", "base_model_name_or_path": "Qwen/Qwen3-0.6B", "r": 1}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    (folder / "metrics.json").write_text(json.dumps({"eval_loss": 1 / (1 + step)}))
    (folder / "rng").mkdir(exist_ok=True)
    (folder / "rng" / "state.bin").write_bytes(bytes([step % 256]) * 100)


steps = [int(word) for word in os.environ.get("TRAINSHED_PARAM_RUN_COMMAND", "100").split()]
for step in steps:
    save(Path("out") / f"checkpoint-{first + step}", first + step)
print("eval_loss: 0.000001")
sys.exit(0)
'''
"""A ``main.py``: ``--command`` names the steps to save at, counted from the Checkpoint it resumes from."""
