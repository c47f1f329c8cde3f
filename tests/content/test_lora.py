"""LoRA adapters are recognised by what was stored, and nothing else is taken for one."""

from __future__ import annotations

import io
import json
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from obstore.store import MemoryStore

from support import lora
from support.examples import examples
from trainshed.content import safetensors
from trainshed.content.blobs import BlobError, FolderBlobStore
from trainshed.content.lora import MAX_ADAPTERS, MAX_FILES, Adapters, find_adapters
from trainshed.content.objects import ObjectBlobStore
from trainshed.content.outputs import CollectedFile, CollectionCancelled
from trainshed.content.safetensors import NotSafetensors, read_header


@pytest.fixture(scope="module")
def blobs(tmp_path_factory) -> FolderBlobStore:
    return FolderBlobStore(tmp_path_factory.mktemp("blobs"))


@pytest.fixture
def find(blobs):
    """Stores these files and looks for adapters among them."""

    def look(files: dict[str, bytes], **options) -> Adapters:
        stored = []
        for name, content in files.items():
            blob = blobs.put(io.BytesIO(content))
            stored.append(CollectedFile(name, blob.size, blob.sha256))
        return find_adapters(stored, blobs, **options)

    return look


def reason(found: Adapters) -> str:
    assert not found.found
    [rejected] = found.rejected
    return rejected.reason


def header_of(content: bytes) -> dict[str, safetensors.Tensor]:
    return read_header(lambda start, length: content[start : start + length], len(content))


def fault_of(content: bytes) -> str:
    with pytest.raises(NotSafetensors) as caught:
        header_of(content)
    return str(caught.value)


# What is registered


def test_E106_A13_a_folder_with_both_files_is_an_adapter_with_its_base_model_and_rank(find):
    found = find({**lora.adapter("out"), "out/README.md": b"read me", "other.txt": b"x"})
    [adapter] = found.found
    assert not found.rejected
    assert (adapter.folder, adapter.base_model, adapter.rank) == ("out", lora.BASE_MODEL, 2)
    assert (adapter.step, adapter.value) == (None, None)
    assert [file.name for file in adapter.files] == [
        "README.md",
        "adapter_config.json",
        "adapter_model.safetensors",
    ]


def test_E106_an_adapter_may_lie_at_the_top(find):
    [adapter] = find(lora.adapter("")).found
    assert adapter.folder == ""
    assert len(adapter.files) == 2


def test_every_folder_is_one_and_a_file_belongs_to_the_nearest(find):
    files = {
        **lora.adapter("out"),
        "out/logs/events": b"1",
        **lora.adapter("out/checkpoint-20", fill=2),
        "out/checkpoint-20/optimizer/shard-0.bin": b"2",
        **lora.adapter("out/checkpoint-100", fill=3),
        "beside.txt": b"3",
    }
    by_folder = {adapter.folder: adapter for adapter in find(files).found}
    names = {folder: {file.name for file in adapter.files} for folder, adapter in by_folder.items()}
    both = {"adapter_config.json", "adapter_model.safetensors"}
    assert names == {
        "out": both | {"logs/events"},
        "out/checkpoint-20": both | {"optimizer/shard-0.bin"},
        "out/checkpoint-100": both,
    }
    assert {folder: adapter.step for folder, adapter in by_folder.items()} == {
        "out": None,
        "out/checkpoint-20": 20,
        "out/checkpoint-100": 100,
    }


def test_embeddings_and_further_tensors_are_weights_too(find):
    tensors = {
        "base_model.model.embed.lora_embedding_A": (2, 8),
        "base_model.model.embed.lora_embedding_B": (4, 2),
        "base_model.model.score.modules_to_save.weight": (3,),
        "scalar": (),
        "empty": (0, 7),
    }
    files = {**lora.adapter("out"), "out/adapter_model.safetensors": lora.weights(tensors)}
    assert find(files).found


def test_E106_adapters_are_found_in_an_object_store_as_in_a_folder(tmp_path):
    store = ObjectBlobStore(MemoryStore(), tmp_path / "spool", "memory")
    files = lora.adapter("out")
    stored = [
        CollectedFile(name, blob.size, blob.sha256)
        for name, blob in ((name, store.put(io.BytesIO(content))) for name, content in files.items())
    ]
    [adapter] = find_adapters(stored, store).found
    assert (adapter.base_model, adapter.rank) == (lora.BASE_MODEL, 2)
    store.close()


# What is not


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_E107_one_file_without_the_other_is_no_adapter(find, name):
    files = lora.adapter("out")
    del files[f"out/{name}"]
    assert name in reason(find(files))


def test_E107_the_two_files_in_different_folders_are_no_adapter(find):
    files = lora.adapter("out")
    files["elsewhere/adapter_config.json"] = files.pop("out/adapter_config.json")
    found = find(files)
    assert not found.found
    assert [each.folder for each in found.rejected] == ["elsewhere", "out"]


def test_E108_other_outputs_are_never_adapters_and_cost_nothing(blobs, monkeypatch):
    monkeypatch.setattr(blobs, "open", lambda *_: pytest.fail("nothing is read"))
    names = ["model.safetensors", "config.json", "my_adapter_config.json", "adapter_model.safetensors.bak"]
    stored = [CollectedFile(f"out/{name}", 1, "0" * 64) for name in names]
    assert not find_adapters(stored, blobs)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"peft_type": "ADALORA"}, "'ADALORA'"),
        ({"peft_type": "lora"}, "'lora'"),
        ({"peft_type": None}, "None"),
        ({"peft_type": ["LORA"]}, "['LORA']"),
        ({"base_model_name_or_path": None}, "names no base model"),
        ({"base_model_name_or_path": " "}, "names no base model"),
        ({"base_model_name_or_path": 7}, "names no base model"),
        ({"base_model_name_or_path": "a\x00b"}, "names no base model"),
        ({"base_model_name_or_path": "a\ud800"}, "names no base model"),
        ({"base_model_name_or_path": "m" * 1025}, "1025 characters"),
        ({"r": None}, "names no rank"),
        ({"r": 0}, "names no rank"),
        ({"r": True}, "names no rank"),
        ({"r": 2.0}, "names no rank"),
        ({"r": 2**31}, "names no rank"),
    ],
)
def test_A13_a_configuration_of_something_else_is_not_registered(find, changes, said):
    assert said in reason(find(lora.adapter("out", **changes)))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is not JSON"),
        (b"[]", "is no JSON object"),
        (b'"LORA"', "is no JSON object"),
        (b"{'peft_type': 'LORA'}", "is not JSON"),
        (b'{"peft_type": "LORA", "peft_type": "LORA"}', "appears twice"),
        (b'{"r": NaN}', "is not JSON"),
        (b'{"r": 1e999}', "the number 1e999, which is too large"),
        (b"[" * 100_000, "nested deeper"),
        (b"\xff\xfe{}", "is not JSON"),
        (b" " * (1 << 20) + b"{}", "at most"),
    ],
)
def test_A13_a_configuration_that_is_no_plain_json_object_is_not_registered(find, content, said):
    assert said in reason(find({**lora.adapter("out"), "out/adapter_config.json": content}))


@pytest.mark.parametrize(
    "tensors",
    [
        {},
        {"unet.down.lora_down.weight": (2, 2), "unet.up.lora_up.weight": (2, 2)},
        {"model.layers.0.q_proj.weight": (4, 4)},
        {"q_proj.lora_A.weight": (2, 4)},
        {"q_proj.lora_A.weight": (2, 4), "k_proj.lora_B.weight": (4, 2)},
        {"q_proj.lora_A.weight": (0, 4), "q_proj.lora_B.weight": (4, 0)},
        {"q_proj.lora_Alpha": (1,), "q_proj.lora_Beta": (1,)},
    ],
)
def test_A13_weightless_and_foreign_layouts_are_not_registered(find, tensors):
    files = {**lora.adapter("out"), "out/adapter_model.safetensors": lora.weights(tensors)}
    assert "no pair" in reason(find(files))


def test_A13_weights_that_are_no_safetensors_are_not_registered(find):
    files = {**lora.adapter("out"), "out/adapter_model.safetensors": b"PK\x03\x04 a pickle in a zip"}
    assert "is no valid safetensors file" in reason(find(files))


def test_a_folder_with_too_many_files_and_too_many_folders_are_told(blobs):
    def stored(name: str, content: bytes) -> CollectedFile:
        blob = blobs.put(io.BytesIO(content))
        return CollectedFile(name, blob.size, blob.sha256)

    pair = [stored(name, content) for name, content in lora.adapter("").items()]
    filler = [CollectedFile(f"f{number}", 1, pair[0].sha256) for number in range(MAX_FILES)]
    assert f"at most {MAX_FILES}" in reason(find_adapters([*pair, *filler], blobs))
    copies = [
        CollectedFile(f"c{number}/{file.name}", file.size, file.sha256)
        for number in range(MAX_ADAPTERS + 3)
        for file in pair
    ]
    found = find_adapters(copies, blobs)
    assert (len(found.found), found.not_looked_at) == (MAX_ADAPTERS, 3)


# Steps and metrics come from declared files only


def test_the_step_comes_from_the_trainers_state_where_the_folder_names_none(find):
    state = json.dumps({"global_step": 1234}).encode()
    [adapter] = find({**lora.adapter("out"), "out/trainer_state.json": state}).found
    assert adapter.step == 1234


@pytest.mark.parametrize("step", ["12", -1, 1.5, True, None, 2**40])
def test_a_step_that_is_none_is_left_out(find, step):
    state = json.dumps({"global_step": step}).encode()
    [adapter] = find({**lora.adapter("out"), "out/trainer_state.json": state}).found
    assert adapter.step is None


@pytest.mark.parametrize(
    "folder", ["checkpoint-", "checkpoint-x", "checkpoint-99999999999", "mycheckpoint-1"]
)
def test_a_folder_that_names_no_step_has_none(find, folder):
    [adapter] = find(lora.adapter(folder)).found
    assert adapter.step is None


def test_E72_a_metric_comes_from_a_declared_file_beside_the_adapter(find):
    metrics = json.dumps({"eval_loss": 0.25, "other": 1}).encode()
    files = {**lora.adapter("out"), "out/metrics.json": metrics}
    assert find(files, metric="eval_loss").found[0].value == 0.25
    assert find(files, metric="accuracy").found[0].value is None
    assert find(files).found[0].value is None


def test_E72_else_from_the_newest_entry_of_the_trainers_history(find):
    history = [{"step": 1, "eval_loss": 3.0}, {"step": 2, "eval_loss": 2.0}, {"step": 3, "loss": 9.0}, "x"]
    state = json.dumps({"global_step": 3, "log_history": history}).encode()
    [adapter] = find({**lora.adapter("out"), "out/trainer_state.json": state}, metric="eval_loss").found
    assert adapter.value == 2.0


@pytest.mark.parametrize(
    "metrics", [b"", b"[]", b'{"m": "0.1"}', b'{"m": true}', b'{"m": null}', b'{"m": {}}', b'{"m": NaN}']
)
def test_what_is_no_finite_number_is_no_metric(find, metrics):
    files = {**lora.adapter("out"), "out/metrics.json": metrics}
    [adapter] = find(files, metric="m").found
    assert adapter.value is None
    assert adapter.metric_fault.startswith("metrics.json ")
    assert find(files).found[0].metric_fault is None, "nobody asked"


@pytest.mark.parametrize("metrics", [None, b"{}", b'{"m": 1, "other": "x"}', b'{"other": 1}'])
def test_a_metric_that_is_not_declared_is_no_fault(find, metrics):
    files = {**lora.adapter("out")} | ({} if metrics is None else {"out/metrics.json": metrics})
    assert find(files, metric="m").found[0].metric_fault is None


def test_a_whole_number_too_large_for_a_metric_is_none(find):
    files = {**lora.adapter("out"), "out/metrics.json": b'{"m": 1' + b"0" * 400 + b"}"}
    assert find(files, metric="m").found[0].value is None


# Faults


def test_a_store_that_fails_is_no_verdict_on_the_adapter(find, blobs, monkeypatch):
    def broken(*_):
        raise BlobError("the store does not answer")

    monkeypatch.setattr(blobs, "open", broken)
    with pytest.raises(BlobError):
        find(lora.adapter("out"))


def test_a_stop_ends_the_search(find):
    with pytest.raises(CollectionCancelled):
        find(lora.adapter("out"), cancelled=lambda: True)


# The header of a safetensors file


def test_a_header_is_read_without_the_data_behind_it():
    content = lora.weights()
    asked: list[tuple[int, int]] = []

    def read(start: int, length: int) -> bytes:
        asked.append((start, length))
        return content[start : start + length]

    tensors = read_header(read, len(content))
    assert {name: tensor.shape for name, tensor in tensors.items()} == dict(lora.PAIR)
    header = int.from_bytes(content[:8], "little")
    assert asked == [(0, 8), (8, header)]


def test_a_header_may_be_padded_with_spaces():
    document, size = lora.header()
    raw = json.dumps(document).encode() + b" " * 7
    assert header_of(lora.encode(None, bytes(size), raw=raw))


def one(start: object, end: object, shape: object = (1,), dtype: object = "U8", size: int = 1) -> bytes:
    shape = list(shape) if isinstance(shape, tuple) else shape
    document = {"t": {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}}
    return lora.encode(document, bytes(size))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "0 bytes"),
        (b"\0" * 7, "7 bytes"),
        (struct.pack("<Q", 2**64 - 1) + b"{}", "the whole file has 10"),
        (struct.pack("<Q", 3) + b"{}", "the whole file has 10"),
        (struct.pack("<Q", 0), "no JSON object"),
        (lora.encode(None, b"", raw=b"[]"), "no JSON object"),
        (lora.encode(None, b"", raw=b" {}"), "no JSON object"),
        (lora.encode(None, b"", raw=b"{"), "not JSON"),
        (lora.encode(None, b"", raw=b"{}{}"), "not JSON"),
        (lora.encode(None, b"", raw=b'{"\xff": 1}'), "not JSON"),
        (lora.encode(None, b"", raw=b'{"a":{},"a":{}}'), "appears twice"),
        (lora.encode(None, b"", raw=b'{"a":' + b"[" * 200 + b"]" * 200 + b"}"), "nested deeper"),
        (lora.encode(None, b"", raw=b'{"a":' + b"9" * 5000 + b"}"), "5000 digits"),
        (lora.encode({"__metadata__": {"a": 1}}, b""), "object of strings"),
        (lora.encode({"__metadata__": []}, b""), "object of strings"),
        (lora.encode({"t": []}, b""), "nothing else"),
        (lora.encode({"t": {"dtype": "U8", "shape": [1]}}, b"x"), "nothing else"),
        (
            lora.encode({"t": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1], "more": 1}}, b"x"),
            "nothing else",
        ),
        (one(0, 1, dtype="Q8"), "unknown dtype"),
        (one(0, 1, dtype=["U8"]), "unknown dtype"),
        (one(0, 1, shape="1"), "no shape"),
        (one(0, 1, shape=(-1,)), "no shape"),
        (one(0, 1, shape=(1.0,)), "no shape"),
        (one(0, 1, shape=(True,)), "no shape"),
        (one(0, 1, shape=(2**63,)), "no shape"),
        (one(0, 1, shape=(1,) * 65), "no shape"),
        (one(0, 1, shape=(2**63 - 1,) * 64), "do not make"),
        (one(0, 1, shape=(2**32, 2**32)), "do not make"),
        (one(-1, 0), "begin and end"),
        (one(0, 1.0), "begin and end"),
        (one(None, 1), "begin and end"),
        (one(0, 2**64), "begin and end"),
        (one(1, 0), "before its begin"),
        (one(0, 2, size=2), "do not make"),
        (one(1, 2, size=2), "leave a gap"),
        (one(0, 1, size=2), "the file holds 2"),
        (one(0, 1, size=0), "the file holds 0"),
    ],
)
def test_A13_a_hostile_header_is_refused_with_the_reason(content, said):
    assert said in fault_of(content)


def test_A13_overlapping_tensors_are_refused():
    entry = {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}
    document = {"a": entry, "b": {**entry, "data_offsets": [1, 3]}}
    assert "overlap" in fault_of(lora.encode(document, bytes(3)))
    assert "overlap" in fault_of(lora.encode({"a": entry, "b": entry}, bytes(2)))


def test_A13_a_header_beyond_the_bound_is_not_even_read():
    size = 8 + safetensors.MAX_HEADER_BYTES + 1
    asked: list[int] = []

    def read(start: int, length: int) -> bytes:
        asked.append(length)
        return struct.pack("<Q", size - 8)

    with pytest.raises(NotSafetensors, match="are read"):
        read_header(read, size)
    assert asked == [8]


@pytest.mark.parametrize("filler", [b'"a":[],', b'"a":{},', b"0,0,0,0,0,0,0,0,"])
def test_A13_a_header_of_many_tiny_values_is_refused_before_it_is_decoded(filler, monkeypatch):
    monkeypatch.setattr(safetensors, "decode_json", lambda _: pytest.fail("it was decoded"))
    raw = b'{"x":' + filler * (3 * safetensors.MAX_TENSORS + 3) + b"}"
    assert "more than" in fault_of(lora.encode(None, b"", raw=raw))


@given(st.binary(max_size=200))
def test_no_bytes_break_the_parser(content):
    with pytest.raises(NotSafetensors):
        header_of(content)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)
entries = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["U8", "F16", "F4", "X"]) | json_values,
        "shape": st.lists(st.integers(-1, 4), max_size=3) | json_values,
        "data_offsets": st.lists(st.integers(-1, 40), min_size=2, max_size=2) | json_values,
    }
)


@settings(max_examples=examples(300))
@given(st.dictionaries(st.text(max_size=4), entries | json_values, max_size=4), st.integers(0, 40))
def test_what_is_accepted_covers_the_data_exactly_once(document, size):
    content = lora.encode(document, bytes(size))
    try:
        tensors = header_of(content)
    except NotSafetensors:
        return
    covered = [place for tensor in tensors.values() for place in range(tensor.start, tensor.end)]
    assert sorted(covered) == list(range(size))


shapes = st.lists(st.integers(0, 5), max_size=4).map(tuple)


@given(st.dictionaries(st.text(min_size=1, max_size=8), shapes, max_size=6))
def test_every_well_made_file_is_read_back(tensors):
    tensors.pop("__metadata__", None)
    found = header_of(lora.weights(tensors))
    assert {name: tensor.shape for name, tensor in found.items()} == tensors
