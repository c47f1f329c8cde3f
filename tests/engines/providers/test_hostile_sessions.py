"""What a program can leave in a session of a notebook provider to do harm: nothing of it is believed."""

from __future__ import annotations

import pytest

from trainshed.engines.providers.contract import Phase
from trainshed.engines.providers.sending import Landing, status_of


@pytest.mark.parametrize("odd", [10**400, -1, 1e300, float("nan"), float("inf"), True, "5", [5], None])
def test_a_record_of_an_end_has_times_and_codes_or_none(odd):
    status = status_of({"code": odd, "started_at": odd, "finished_at": odd, "message": ["x"]})
    assert (status.started_at, status.finished_at) == (None, None)
    assert status.exit_code in {None, -1}
    assert status.phase is Phase.FAILED


def test_nothing_lands_outside_and_long_names_land(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    into = tmp_path / "into"
    (into / "outputs").mkdir(parents=True)
    (into / "outputs" / "link").symlink_to(elsewhere)
    landing = Landing(into)
    for name in (
        "outputs/../../x",
        "/outputs/x",
        "outputs/link/x",
        "outputs/link",
        "outputs/\ud800",
        "a\0/b",
    ):
        assert landing.place(name) is None, name
    long = "outputs/" + "\N{SNOWMAN}" * 85
    place = landing.place(long)
    assert place is not None
    landing.write(place, iter([b"x"]))
    assert [path.name for path in (into / "outputs").iterdir() if path.is_file()] == [long[8:]]
    assert list(elsewhere.iterdir()) == []
