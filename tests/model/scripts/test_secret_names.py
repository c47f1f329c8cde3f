"""What may not be given as a plain variable (G48-G50), and the same shapes in text (e.4)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainshed.model.scripts.secret_names import find_tokens, refusal, reserved

RANDOM = "a1B2c3D4e5F6g7H8i9J0k1L2"
TOKENS = [
    f"hf_{RANDOM}",
    *(f"gh{letter}_{RANDOM}" for letter in "pousr"),
    f"github_pat_{RANDOM}_{RANDOM}",
    f"sk-{RANDOM}",
    f"sk-proj-{RANDOM}",
    f"sk-ant-api03-{RANDOM}",
    f"xoxb-1234567890-{RANDOM}",
    f"xoxp-{RANDOM}",
    "AKIAIOSFODNN7EXAMPLE",
    f"ak-{RANDOM}",
    f"as-{RANDOM}",
    f"gsk_{RANDOM}",
    f"AIza{RANDOM}12345678901",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
    "eyJhbGciOiJSU0EifQ.AAAA.BBBB.CCCC.DDDD",
    "-----BEGIN RSA PRIVATE KEY-----",
]


@pytest.mark.parametrize(
    "name",
    [
        "TOKEN",
        "hub_token",
        "MY_SECRET",
        "SECRETS",
        "PASSWORD",
        "db_passwd",
        "API_KEY",
        "apikey",
        "ACCESSKEY",
        "AWS_ACCESS_KEY_ID",
        "PRIVATE_KEY",
        "GOOGLE_CREDENTIALS",
        "AUTH",
        "BASIC_AUTH",
        "KEY",
        "WANDB_KEY",
        "PASS",
        "SMTP_PASS",
        "SLACK_WEBHOOK_URL",
        "DSN",
        "SENTRY_DSN",
        "COOKIE",
        "SESSION_COOKIE",
        *(f"{base}_URL" for base in ("DATABASE", "DB", "REDIS", "MONGO", "MONGODB", "POSTGRES", "PG")),
        *(f"{base}_URI" for base in ("POSTGRESQL", "MYSQL", "AMQP", "BROKER", "CELERY_BROKER", "RABBITMQ")),
    ],
)
def test_G48_a_variable_with_the_name_of_a_secret_is_refused(name):
    said = refusal(name, "plain-words")
    assert said
    assert f"`{name}`" in said
    assert "plain-words" not in said


@pytest.mark.parametrize("token", TOKENS)
@pytest.mark.parametrize("form", ["{}", "Bearer {}", "token={}", "https://user:{}@host/x"])
def test_G49_a_value_of_the_shape_of_a_token_is_refused_under_any_name_and_not_told(token, form):
    value = form.format(token)
    said = refusal("HARMLESS", value)
    assert said
    assert token not in said
    assert token[8:] not in said


@pytest.mark.parametrize(
    "value", ["0123456789abcdef0123456789abcdef", "KAGGLE_KEY=0123456789abcdef0123456789abcdef"]
)
def test_G49_so_is_a_key_of_kaggle(value):
    assert refusal("HARMLESS", value)
    assert refusal("HARMLESS", '{"username": "u", "key": "0123456789abcdef0123456789abcdef"}')


def test_G50_the_refusal_says_where_a_secret_belongs():
    said = refusal("WANDB_API_KEY", "x")
    assert "`gpu secrets set WANDB_API_KEY`" in said
    assert "`secrets:` in gpu.yaml" in said


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TOKENIZERS_PARALLELISM", "false"),
        ("TOKENIZERS_PARALLELISM", "0"),
        ("MAX_TOKENS", "512"),
        ("AUTHOR", "1"),
        ("N_TOKENS_PER_STEP", "2.5e5"),
        ("EPOCHS", "12"),
        ("KEYBOARD", "us"),
        ("MONKEY", "see"),
        ("PASSES", "3"),
        ("MODEL", "hf_hub/bert"),
        ("ESTIMATOR", "sk-learn"),
        ("RUN", "as-usual"),
        ("SCRIPT_URL", "https://example.org/a?b=c"),
        ("SHA", "0123456789abcdef0123456789abcdef01234567"),
        ("OMP_NUM_THREADS", "4"),
    ],
)
def test_G47_a_plain_variable_is_not_refused(name, value):
    assert refusal(name, value) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [("AUTHOR", "Ada"), ("TOKENIZERS", "abc"), ("TOKEN", "1"), ("HUB_TOKEN", "true"), ("MY_SECRETS", "1")],
)
def test_only_a_number_under_a_longer_word_is_let_through(name, value):
    assert refusal(name, value)


@pytest.mark.parametrize("name", ["KAGGLE", "hf_token", "COLAB", "INFER_GROQ", "MODAL_TOKEN_ID"])
def test_names_of_logins_are_never_given_to_jobs(name):
    assert "reserved" in reserved(name)
    assert refusal(name, "x") == reserved(name)


@given(st.text(min_size=12, alphabet=st.characters(blacklist_characters="`")))
def test_no_refusal_holds_the_value(value):
    said = refusal("API_KEY", value)
    assert said
    assert value not in said or value in refusal("API_KEY", "")


@pytest.mark.parametrize("token", TOKENS)
def test_a_token_in_a_text_is_found_with_its_line(token):
    text = f"one\r\ntwo = '{token}'\nthree {token} {token}\n".encode()
    assert list(find_tokens(text)) == [2, 3]


def test_ordinary_text_holds_no_token():
    text = b"task-123456789012345678901234 md5 = 0123456789abcdef0123456789abcdef\nhf_hub(keys)\nghosts\n"
    assert list(find_tokens(text)) == []
