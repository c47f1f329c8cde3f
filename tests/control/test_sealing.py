"""Hidden values at rest (P9): sealed with keys from a file of the operator, never readable without them."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from cryptography.fernet import Fernet

from trainshed.control.sealing import Seal, SealBroken, read_or_create_keys

HIDDEN = {"WANDB_API_KEY": "7f3a secret"}


def test_P9_a_sealed_value_does_not_show_and_opens_with_its_key_alone():
    key, other = (Fernet.generate_key().decode() for _ in range(2))
    sealed = Seal(key).seal(HIDDEN)
    assert sealed is not None
    assert "secret" not in sealed
    assert Seal(key).open(sealed) == HIDDEN
    with pytest.raises(SealBroken):
        Seal(other).open(sealed)
    with pytest.raises(SealBroken):
        Seal(key).open(sealed[:-8] + "AAAAAAA=")


def test_P9_nothing_hidden_is_nothing_sealed():
    seal = Seal(Fernet.generate_key().decode())
    assert seal.seal({}) is None
    assert seal.open(None) == {}


def test_P9_a_new_key_seals_and_the_old_one_still_opens_with_digests_unchanged():
    old, new = (Fernet.generate_key().decode() for _ in range(2))
    before, after = Seal(old), Seal(new, old)
    assert after.open(before.seal(HIDDEN)) == HIDDEN
    assert after.digest_key == before.digest_key
    assert after.fingerprint != before.fingerprint
    with pytest.raises(SealBroken):
        before.open(after.seal(HIDDEN))


def test_P9_the_file_of_keys_is_made_once_for_this_user_alone(tmp_path: Path):
    path = tmp_path / "secrets.key"
    keys = read_or_create_keys(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_or_create_keys(path) == keys
    assert Seal(*keys).open(Seal(*keys).seal(HIDDEN)) == HIDDEN
    Fernet(keys[0])  # any tool that knows Fernet can open what was sealed


def test_P9_a_file_that_a_crash_left_empty_gets_its_key(tmp_path: Path):
    path = tmp_path / "secrets.key"
    path.touch(0o600)
    keys = read_or_create_keys(path)
    assert path.read_text().split() == list(keys)


@pytest.mark.parametrize(
    "text",
    [
        "not a key\n",
        "A" * 43,  # as long, without its padding
        "A" * 40 + "\n",
        Fernet.generate_key().decode() + "\nAAAA\n",
        "é" * 44,
    ],
    ids=["words", "padding", "short", "second", "letters"],
)
def test_P9_a_file_that_holds_something_else_is_refused_whole(tmp_path: Path, text: str):
    path = tmp_path / "secrets.key"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"base64|ascii"):
        read_or_create_keys(path)
    assert path.read_text() == text
