"""Files that never leave a machine: credentials, by name, place and link target (e.4).

Tracked or included makes no difference. The rules go by names alone, in any case of letters. A copy that an
editor or a careful person leaves (``.env~``, ``server.key.bak``, ``.token.json.swp``) is what it copies.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import translate

NAMES = (
    *(
        ".env",
        ".env.*",
        "*.env",
        ".envrc",
        "*.pem",
        "*.key",
        "*.p12",
        "*.pfx",
        "*.jks",
        "*.keystore",
        "*.kdbx",
    ),
    *("id_rsa*", "id_dsa*", "id_ed25519*", "id_ecdsa*", ".netrc", "_netrc", ".pypirc", ".npmrc", ".pgpass"),
    *(".git-credentials", ".htpasswd", ".boto", ".s3cfg", ".dockercfg", "kaggle.json", ".modal.toml"),
    *("credentials", "credentials.json", "credentials.toml", "credentials.yaml", "credentials.yml"),
    *(
        "credentials.ini",
        "client_secret*.json",
        "service-account*.json",
        "application_default_credentials.json",
    ),
    *(
        "token.json",
        "token.pickle",
        "secrets.toml",
        "secrets.json",
        "secrets.yaml",
        "secrets.yml",
        "auth.json",
    ),
    *(".credentials.json", "*.keychain", "*.keychain-db", ".claude.json"),
)
DIRECTORIES = (
    *(".aws", ".ssh", ".gnupg", ".kaggle", ".huggingface", ".azure", ".docker", ".kube", ".modal", ".codex"),
    *(".lightning", ".password-store"),
)
PAIRS = (".config/gcloud", ".cache/huggingface", ".config/gh")
HOME_STORES = (
    *(*DIRECTORIES, *PAIRS, ".config/hub", ".config/git/credentials", ".claude", ".claude.json"),
    *(".local/share/keyrings", "Library/Keychains", "Library/Cookies"),
)
"""Below the home directory; what is theirs is never shipped, packed as data or walked into."""
ALLOWED = (".env.example", ".env.sample", ".env.template", ".env.dist", "*.example", "*.sample", "*.template")
"""In spite of `NAMES`: they hold no values."""


COPIES = ("~", ".~1~", ".bak", ".backup", ".old", ".orig", ".save", ".swp", ".swo")
"""What editors and people put behind the name of a copy; a number may follow (``.bak2``, ``.save.1``)."""
_COPY = re.compile(r"(?P<of>.+?)(?:~|\.~\d+~|\.(?:bak|backup|old|orig|save|(?P<swap>sw[a-z]))(?:\.?\d+)?)")


def _any_of(patterns: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(translate(pattern.lower()) for pattern in patterns))


_NAME = _any_of(NAMES)
_ALLOWED = _any_of(ALLOWED)
_DIRECTORIES = frozenset(DIRECTORIES)
_PAIRS = frozenset(tuple(pair.split("/")) for pair in PAIRS)
_SUSPICIOUS = re.compile(
    r"\.(?:env|pem|key|p12|pfx|jks|keystore|kdbx|json|toml|pickle|ya?ml|ini|keychain|keychain-db)(?:$|[./~#])"
    r"|(?:^|/)(?:[.#]|_netrc|id_|credentials)",
    re.IGNORECASE,
)
"""What every path that a rule is about holds. Most paths do not, and are judged by this one search."""


def credential_rule(path: str) -> str | None:
    """The rule of e.4 by which ``path`` (of a file, relative or absolute) holds credentials, or ``None``."""
    if not _SUSPICIOUS.search(path):
        return None
    parts = path.lower().strip("/").split("/")
    # A file in a folder whose name is that of a file with credentials lies in such a file that was unpacked.
    before: tuple[str, ...] = ()
    for part in parts:
        names = tuple(_originals(part))
        for name in names:
            if (rule := _rule_of(name, before)) is not None:
                return rule if name == part else f"a copy of {rule}"
        before = names
    return None


def _originals(name: str) -> Iterator[str]:
    """The name itself, then each that it may be a copy of, or a copy of a copy."""
    waiting, seen = [name], {name}
    while waiting:
        name = waiting.pop()
        yield name
        found = []
        if match := _COPY.fullmatch(name):
            found.append(match["of"])
            if match["swap"] and match["of"].startswith("."):  # vim hides its swap files
                found.append(match["of"][1:])
        if name.startswith("#") and name.endswith("#"):
            found.append(name[1:-1])
        if name.startswith(".#"):
            found.append(name[2:])
        waiting += [each for each in found if each and each not in seen]
        seen.update(found)


def _rule_of(name: str, above: Sequence[str]) -> str | None:
    """The rule for one part of a path, in small letters; ``above`` are names of the folder it is in."""
    if name in _DIRECTORIES:
        return f"{name}/"
    for folder in above:
        if (folder, name) in _PAIRS:
            return f"{folder}/{name}/"
    if _NAME.fullmatch(name) and not _ALLOWED.fullmatch(name):
        return next(pattern for pattern in NAMES if re.fullmatch(translate(pattern.lower()), name))
    return None


def in_home_store(place: str, homes: Sequence[str], stores: Iterable[str] = HOME_STORES) -> str | None:
    """Which store ``place`` is or lies in; both are absolute and resolved. ``homes`` are home directories."""
    folded = place.lower().rstrip("/") + "/"
    for home in homes:
        for store in stores:
            if folded.startswith(f"{home.lower().rstrip('/')}/{store.lower()}/"):
                return store
    return None
