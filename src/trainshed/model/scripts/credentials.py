"""Files that never leave a machine: credentials, by name, place and link target (e.4).

Tracked or included makes no difference. The rules go by names alone, in any case of letters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
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


def _any_of(patterns: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(translate(pattern.lower()) for pattern in patterns))


_NAME = _any_of(NAMES)
_ALLOWED = _any_of(ALLOWED)
_DIRECTORIES = frozenset(DIRECTORIES)
_PAIRS = frozenset(tuple(pair.split("/")) for pair in PAIRS)
_SUSPICIOUS = re.compile(
    r"\.(?:env|pem|key|p12|pfx|jks|keystore|kdbx|json|toml|pickle|ya?ml|ini|keychain|keychain-db)(?:$|\.|/)"
    r"|(?:^|/)(?:\.|_netrc|id_|credentials)",
    re.IGNORECASE,
)
"""What every path that a rule is about holds. Most paths do not, and are judged by this one search."""


def credential_rule(path: str) -> str | None:
    """The rule of e.4 by which ``path`` (of a file, relative or absolute) holds credentials, or ``None``."""
    if not _SUSPICIOUS.search(path):
        return None
    parts = path.lower().strip("/").split("/")
    name = parts[-1]
    for number, part in enumerate(parts):
        if part in _DIRECTORIES:
            return f"{part}/"
        if tuple(parts[number : number + 2]) in _PAIRS:
            return f"{'/'.join(parts[number : number + 2])}/"
        if number < len(parts) - 1 and _NAME.fullmatch(part) and not _ALLOWED.fullmatch(part):
            return _rule_of(part)
    if _NAME.fullmatch(name) and not _ALLOWED.fullmatch(name):
        return _rule_of(name)
    return None


def in_home_store(place: str, homes: Sequence[str], stores: Iterable[str] = HOME_STORES) -> str | None:
    """Which store ``place`` is or lies in; both are absolute and resolved. ``homes`` are home directories."""
    folded = place.lower().rstrip("/") + "/"
    for home in homes:
        for store in stores:
            if folded.startswith(f"{home.lower().rstrip('/')}/{store.lower()}/"):
                return store
    return None


def _rule_of(name: str) -> str:
    return next(pattern for pattern in NAMES if re.fullmatch(translate(pattern.lower()), name))
