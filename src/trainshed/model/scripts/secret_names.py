"""What looks like a secret, by its name or by its shape, and which names are never given to Jobs (section h).

The same rules judge `env` of an argument and of gpu.yaml, on the client and again on the server;
`find_tokens` looks for the same shapes in text that is about to be shipped.
No sentence made here holds a value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

SECRET_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""What may be listed under `secrets:`, and what an environment variable may be called."""
RESERVED = frozenset(
    {
        "KAGGLE",
        "KAGGLE_API_TOKEN",
        "KAGGLE_KEY",
        "KAGGLE_USERNAME",
        "HF_TOKEN",
        "HF_TOKEN_REMOTE",
        "GPU_STORAGE_TOKEN",
        "MODAL_TOKEN_ID",
        "MODAL_TOKEN_SECRET",
        "LIGHTNING_USER_ID",
        "LIGHTNING_API_KEY",
        "LIGHTNING_AUTH_TOKEN",
        "COLAB",
    }
)
_RESERVED_START = "INFER_"
_MAX_SHOWN = 80

_PART_OF_A_WORD = re.compile(r"AUTH|TOKEN", re.IGNORECASE)
"""Innocent inside a longer word when the value is a number: `TOKENIZERS_PARALLELISM=false`."""
_ALWAYS = re.compile(
    r"SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|CREDENTIAL|(?:^|_)KEY$|(?:^|_)PASS$|WEBHOOK"
    r"|(?:^|_)DSN$|(?:^|_)COOKIE$"
    r"|^(?:DATABASE|DB|REDIS|MONGO|MONGODB|POSTGRES|POSTGRESQL|PG|MYSQL|AMQP|BROKER|CELERY_BROKER|RABBITMQ)"
    r"_UR[LI]$",
    re.IGNORECASE,
)
_BARE = re.compile(
    r"(?:true|false|yes|no|on|off|[-+]?[0-9]{1,18}(?:\.[0-9]{1,18})?(?:e[-+]?[0-9]{1,3})?)?", re.IGNORECASE
)

_PREFIXED = (
    r"github_pat_[A-Za-z0-9_]{10,}",
    r"xox[a-z]-[A-Za-z0-9-]{8,}",
    r"AKIA[0-9A-Z]{8,}",
    r"AIza[0-9A-Za-z_-]{16,}",
    r"eyJ[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*){2,4}",
    r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----",
)
_IN_VALUES = (
    *_PREFIXED,
    r"hf_(?:[A-Za-z0-9]{16,}|(?=[A-Za-z]*[0-9])[A-Za-z0-9]{6,})",
    r"gh[pousr]_[A-Za-z0-9]{6,}",
    r"sk-(?:[A-Za-z0-9]{16,}|(?:ant|proj|or)-[A-Za-z0-9_-]{6,}|(?=[A-Za-z_-]*[0-9])[A-Za-z0-9_-]{10,})",
    r"a[ks]-[A-Za-z0-9]{16,}",
    r"gsk_[A-Za-z0-9]{6,}",
)
_IN_TEXTS = (
    *_PREFIXED,
    r"hf_(?=[A-Za-z]*[0-9])[A-Za-z0-9]{16,}",
    r"gh[pousr]_[A-Za-z0-9]{16,}",
    r"sk-(?=[A-Za-z_-]*[0-9])[A-Za-z0-9_-]{16,}",
    r"a[ks]-(?=[A-Za-z]*[0-9])[A-Za-z0-9]{20,}",
    r"gsk_[A-Za-z0-9]{16,}",
)
"""Narrower: text is full of what begins like a token, and a value is given on purpose."""
_HINTS = tuple(
    word.encode()
    for word in (
        *(
            "hf_",
            "gho_",
            "ghp_",
            "ghr_",
            "ghs_",
            "ghu_",
            "github_pat_",
            "sk-",
            "ak-",
            "as-",
            "gsk_",
            "xox",
            "AKIA",
        ),
        *("AIza", "eyJ", "PRIVATE KEY", "earer", "EARER", "key", "KEY", "Key"),
    )
)
"""One of them is in every text that holds a token."""
_START = r"(?<![A-Za-z0-9_-])"
_KAGGLE = r"""(?i:(?:kaggle_key['"]?|['"]key['"])\s*[:=]\s*['"]?[0-9a-f]{32}(?![0-9a-f]))"""
_KAGGLE_VALUE = re.compile(r"""\s*(?:[A-Za-z_][A-Za-z0-9_.-]*\s*[:=]\s*)?['"]?[0-9a-fA-F]{32}['"]?\s*""")
_VALUE = re.compile(f"{_START}(?:{'|'.join(_IN_VALUES)})|{_KAGGLE}|(?i:{_START}bearer[ \\t:=]+\\S)")
_TEXT = re.compile(
    (
        f"{_START}(?:{'|'.join(_IN_TEXTS)})|{_KAGGLE}"
        f"|(?i:{_START}bearer[ \\t]+(?=[A-Za-z._~+/-]*[0-9])[A-Za-z0-9._~+/-]{{16,}}=*)"
    ).encode()
)


def reserved(name: str) -> str | None:
    """Why a Job is never given a variable or secret of this name (h.3), or ``None``."""
    upper = name.upper()
    if upper in RESERVED or upper.startswith(_RESERVED_START):
        return f"`{_shown(name)}` is reserved for the logins of providers and is never given to a Job"
    return None


def looks_secret(name: str, value: str) -> bool:
    """Whether the name says that the value is a secret (h.2)."""
    if _ALWAYS.search(name):
        return True
    found = list(_PART_OF_A_WORD.finditer(name))
    innocent = _BARE.fullmatch(value.strip()) is not None
    return bool(found) and not (innocent and all(_inside_a_word(name, match) for match in found))


def token_shaped(value: str) -> bool:
    """Whether the value has the shape of a key or token of a known kind, bare or as ``key=value`` (h.2)."""
    return _VALUE.search(value) is not None or _KAGGLE_VALUE.fullmatch(value) is not None


def refusal(name: str, value: str) -> str | None:
    """Why the variable ``name`` may not be given in the open, in a sentence without its value; or ``None``.

    Reserved names are refused too: a Job that was given the login of a provider could act in its user's name.
    """
    if said := reserved(name):
        return said
    if not looks_secret(name, value) and not token_shaped(value):
        return None
    how = "has a name of a secret" if looks_secret(name, value) else "has a value that looks like a secret"
    shown = _shown(name)
    return (
        f"`{shown}` {how}, and `env` is not kept secret; store it with `gpu secrets set {shown}` and list "
        f"{shown} under `secrets:` in gpu.yaml"
    )


def find_tokens(text: bytes) -> Iterator[int]:
    """The lines, counted from 1, on which something of the shape of a token begins; each once."""
    if not any(word in text for word in _HINTS):
        return
    line, place, told = 1, 0, 0
    for match in _TEXT.finditer(text):
        line += text.count(b"\n", place, match.start())
        place = match.start()
        if line != told:
            told = line
            yield line


def _inside_a_word(name: str, match: re.Match[str]) -> bool:
    before, after = name[: match.start()][-1:], name[match.end() :][:1]
    return before.isalpha() or after.isalpha()


def _shown(name: str) -> str:
    return name[:_MAX_SHOWN].encode("ascii", "backslashreplace").decode()
