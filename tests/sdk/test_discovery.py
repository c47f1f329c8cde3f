"""Which server a client talks to, and with which key."""

from __future__ import annotations

import stat

import pytest

from trainshed.sdk import ConfigurationError
from trainshed.sdk.discovery import find_connection, load_login, normalise_url, remove_login, save_login
from trainshed.sdk.home import Home, find_home

OURS = {"TRAINSHED_URL": "http://127.0.0.1:1", "TRAINSHED_API_KEY": "ours"}
PUBLISHED = {"ENVLOOP_BASE_URL": "http://127.0.0.1:2/v1", "ENVLOOP_API_KEY": "theirs"}


@pytest.fixture
def base(tmp_path):
    return {"TRAINSHED_HOME": str(tmp_path / "home"), "TRAINSHED_NO_AUTOSTART": "1"}


@pytest.fixture
def home(base) -> Home:
    return find_home(base)


def found(environ, *arguments):
    connection = find_connection(*arguments, environ=environ)
    return connection.url, connection.api_key, connection.source


def test_the_first_that_gives_an_address_wins(base, home):
    save_login(home, "http://127.0.0.1:3", "saved")
    assert found({**base, **OURS, **PUBLISHED}, "http://127.0.0.1:9", "given") == (
        "http://127.0.0.1:9",
        "given",
        "argument",
    )
    assert found({**base, **OURS, **PUBLISHED}) == ("http://127.0.0.1:1", "ours", "TRAINSHED_URL")
    assert found({**base, **PUBLISHED}) == ("http://127.0.0.1:2", "theirs", "ENVLOOP_BASE_URL")
    assert found(base) == ("http://127.0.0.1:3", "saved", "login")
    remove_login(home)
    with pytest.raises(ConfigurationError, match="no server is named"):
        found(base)


def test_a_key_is_sent_only_to_the_address_it_came_with(base, home):
    save_login(home, "http://127.0.0.1:3", "saved")
    ours_without_key = {"TRAINSHED_URL": "http://127.0.0.1:1"}
    assert found({**base, **ours_without_key, **PUBLISHED})[1] is None
    assert found({**base, **PUBLISHED, "ENVLOOP_API_KEY": "", "TRAINSHED_API_KEY": "ours"})[1] is None
    assert found({**base, **OURS}, "http://127.0.0.1:9")[1] is None
    assert found({**base, **OURS}, "http://127.0.0.1:1/")[1] == "ours"
    assert found(base, "http://127.0.0.1:3")[1] == "saved"


def test_a_key_alone_replaces_that_of_the_saved_login(base, home):
    save_login(home, "http://127.0.0.1:3", "saved", "team-a")
    connection = find_connection(environ={**base, "TRAINSHED_API_KEY": "other"})
    assert (connection.url, connection.api_key, connection.project) == (
        "http://127.0.0.1:3",
        "other",
        "team-a",
    )


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("https://h.example", "https://h.example"),
        ("https://h.example:8443/v1/", "https://h.example:8443"),
        ("https://h.example/api/v1", "https://h.example/api"),
        ("http://localhost:80/", "http://localhost:80"),
        ("http://[::1]:5/v1", "http://[::1]:5"),
    ],
)
def test_addresses_are_normalised(text, normal):
    assert normalise_url(text) == normal


@pytest.mark.parametrize(
    "text",
    [
        "h.example",
        "ftp://h.example",
        "http://h.example",
        "http://0.0.0.0:1",
        "http://127.0.0.2",
        "https://u:p@h.example",
        "https://h.example?x=1",
        "https://h.example/#x",
        "https://h.example/other",
        "https://h.example:port",
        "",
    ],
)
def test_addresses_that_are_none_or_would_leak_the_key_are_refused(text):
    with pytest.raises(ConfigurationError):
        normalise_url(text)


def test_a_login_is_saved_for_its_owner_only(base, home):
    save_login(home, "https://h.example", "secret")
    assert stat.S_IMODE(home.login.stat().st_mode) == 0o600
    assert stat.S_IMODE(home.login.parent.stat().st_mode) == 0o700
    assert [path.name for path in home.config.iterdir()] == ["login.json"]
    assert load_login(home).api_key == "secret"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
def test_a_login_that_others_can_read_is_refused_with_the_remedy(home, mode):
    save_login(home, "https://h.example", "secret")
    home.login.chmod(mode)
    with pytest.raises(ConfigurationError) as caught:
        load_login(home)
    assert "chmod" in caught.value.hint
    assert "secret" not in str(caught.value)


def test_a_folder_that_others_can_enter_is_not_written_to(home):
    home.config.mkdir(mode=0o755)
    with pytest.raises(ConfigurationError, match="0755"):
        save_login(home, "https://h.example", "secret")
    assert list(home.config.iterdir()) == []


def test_a_login_behind_a_link_is_refused(home, tmp_path):
    save_login(home, "https://h.example", "secret")
    home.login.rename(tmp_path / "elsewhere")
    home.login.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigurationError):
        load_login(home)


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"url": 1}', '{"url": "https://h.example", "api_key": null}']
)
def test_a_login_that_is_none_is_refused(home, text):
    save_login(home, "https://h.example", "secret")
    home.login.write_text(text)
    with pytest.raises(ConfigurationError):
        load_login(home)


def test_without_a_home_variable_the_platform_folders_are_used(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "c"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "d"))
    home = find_home({})
    assert home.login == tmp_path / "c" / "trainshed" / "login.json"
    assert home.server_data == tmp_path / "d" / "trainshed" / "server"
