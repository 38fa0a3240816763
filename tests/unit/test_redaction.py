"""Redaction: every format hides what it should and leaves alone what only looks alike; time is linear in the text."""

from __future__ import annotations

import re
import time
from string import ascii_letters, digits

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedmate.infra.telemetry.redaction import (
    DEPTH_MAX,
    LINE_CHARACTERS_MAX,
    REDACTED,
    TEXT_CHARACTERS_MAX,
    is_secret_key,
    redact,
    redact_value,
)
from schedmate.infra.telemetry.secret_formats import CONTEXTS, TOKENS

A = ascii_letters + digits  # 62 characters
HEX = "0123456789abcdef"


def made(*parts: str) -> str:
    """Put a specimen together: no scanner should take this file for a leak."""
    return "".join(parts)


# format → (text, the secret in it); at least one a format
HIDDEN: list[tuple[str, str, str]] = [
    ("AWS access key id", "key {}", made("AKIA", "IOSFODNN7EXAMPLE")),
    ("AWS secret access key", "aws_secret_access_key = {}", made("wJalrXUtnFEMI/K7MDENG/", "bPxRfiCYEXAMPLEKEY")),
    ("AWS session token", "AWS_SESSION_TOKEN={}", made("FwoGZXIvYXdzE", A)),
    ("Google API key", "using {}", made("AIza", A[:35])),
    ("Google OAuth access token", "{}", made("ya29.", A[:40])),
    ("Google OAuth client secret", "{}", made("GOCSPX-", A[:28])),
    ("Google refresh token", "{}", made("1//0", A[:40])),
    ("Azure storage account key", "DefaultEndpointsProtocol=https;AccountKey={};", made(A, A[:24], "==")),
    ("Azure shared access signature", "https://x.blob.core.windows.net/c?sv=2022&sig={}", made(A[:40], "%3D")),
    ("Azure service bus key", "Endpoint=sb://x;SharedAccessKey={}", made(A[:43], "=")),
    ("Azure client secret", "{}", made("abc8Q~", A[:34])),
    ("GitHub token", "fatal: {} rejected", made("ghp_", A[:36])),
    ("GitHub token", "{}", made("ghs_", A[:36])),
    ("GitHub fine-grained token", "{}", made("github_pat_", A[:22], "_", A[:59])),
    ("GitLab token", "git clone with {}", made("glpat-", A[:20])),
    ("Slack token", "{}", made("xoxb-", digits, "-", digits, "-", A[:24])),
    ("Slack app token", "{}", made("xapp-1-", A[:40])),
    ("Slack web hook", "https://hooks.slack.com/services/{}", made("T00000000/B00000000/", A[:24])),
    ("Discord web hook", "https://discord.com/api/webhooks/{}", made("123456789012345678/", A)),
    ("Discord bot token", "{}", made("MTk4NjIyNDgzNDcxOTI1MjQ4", ".Cl2FMQ.", A[:27])),
    ("Telegram bot token", "{}", made("123456789", ":AA", A[:33])),
    ("Hugging Face token", "login({})", made("hf_", A[:34])),
    ("Anthropic key", "{}", made("sk-ant-", "api03-", A)),
    ("OpenAI key", "{}", made("sk-", A[:48])),
    ("OpenAI key", "{}", made("sk-proj-", A)),
    ("Groq key", "{}", made("gsk_", A[:52])),
    ("xAI key", "{}", made("xai-", A)),
    ("Replicate token", "{}", made("r8_", A[:37])),
    ("Perplexity key", "{}", made("pplx-", A[:48])),
    ("NVIDIA API key", "{}", made("nvapi-", A)),
    ("npm token", "{}", made("npm_", A[:36])),
    ("npm registry credential", "//registry.example/:_authToken={}", made("abc", "def123456")),
    ("PyPI token", "{}", made("pypi-", "AgEIcHlwaS5vcmc", A)),
    ("RubyGems key", "{}", made("rubygems_", HEX * 3)),
    ("crates.io token", "{}", made("cio", A[:32])),
    ("Docker Hub token", "{}", made("dckr_pat_", A[:27])),
    ("JSON web token", "{}", made("eyJhbGciOiJIUzI1NiJ9", ".eyJzdWIiOiIxMjM0In0", ".dozjgNryP4J3jVmN")),
    ("Stripe key", "{}", made("sk_live_", A[:24])),
    ("SendGrid key", "{}", made("SG.", A[:22], ".", A[:43])),
    ("Twilio key", "{}", made("SK", HEX * 2)),
    ("Mailgun key", "{}", made("key-", HEX * 2)),
    ("Mailchimp key", "{}", made(HEX * 2, "-us12")),
    ("Square token", "{}", made("sq0atp-", A[:22])),
    ("Shopify token", "{}", made("shpat_", HEX * 2)),
    ("DigitalOcean token", "{}", made("dop_v1_", HEX * 4)),
    ("Heroku key", "{}", made("HRKU-", A[:36])),
    ("Linear key", "{}", made("lin_api_", A[:40])),
    ("Notion token", "{}", made("ntn_", A[:46])),
    ("Figma token", "{}", made("figd_", A[:40])),
    ("Grafana token", "{}", made("glsa_", A[:32], "_", HEX[:8])),
    ("New Relic key", "{}", made("NRAK-", A[:27].upper())),
    ("Sentry token", "{}", made("sntrys_", A)),
    ("Databricks token", "{}", made("dapi", HEX * 2)),
    ("HashiCorp Vault token", "{}", made("hvs.", A[:24])),
    ("Terraform Cloud token", "{}", made(A[:14], ".atlasv1.", A)),
    ("age key", "{}", made("AGE-SECRET-KEY-1", (A * 2)[:58].upper())),
    ("Tailscale key", "{}", made("tskey-auth-", A[:20])),
    ("Atlassian token", "{}", made("ATATT3", A)),
    ("Postman key", "{}", made("PMAK-", HEX, HEX[:8], "-", HEX * 2, "ab")),
    ("PlanetScale credential", "{}", made("pscale_tkn_", A[:32])),
    ("Supabase key", "{}", made("sbp_", HEX * 2, HEX[:8])),
    ("Comet, Neptune and ClearML keys", "COMET_API_KEY={}", A[:25]),
    ("Comet, Neptune and ClearML keys", "NEPTUNE_API_TOKEN='{}'", A[:40]),
    ("Weights & Biases key", "WANDB_API_KEY={}", made(HEX * 2, HEX[:8])),
    ("Weights & Biases key", "wandb: logging in with {}", made(HEX * 2, HEX[:8])),
    ("Weights & Biases key, v1", "{}", made("wandb_v1_", A)),
    ("credentials in a URL", "connecting to postgres://{}@db:5432/x", "admin:s3cr3t!"),
    ("credentials in a URL", "mongodb://{}@mongo:27017/?replicaSet=rs0", "user:p%40ss"),
    ("credentials in a URL", "redis://{}@cache:6379/0", ":only-a-password"),
    ("credentials in a URL", "pip install git+https://{}@github.com/x/y", "x-access-token:abc"),
    ("credentials in a URL", "amqp://{}@mq/", "user:pa@ss"),
    ("Authorization header", "> Authorization: Bearer {}", "abc.def"),
    ("Authorization header", "'Authorization': 'Basic {}'", "dXNlcjpwYXNz"),
    ("Authorization header", "authorization: {}", "whatever-it-is"),
    ("bearer token", "sent Bearer {}", A[:20]),
    ("basic credentials", "sent Basic {}", "dXNlcjpwYXNzd29yZA=="),
    ("cookie", "Set-Cookie: {}", "session=abc; HttpOnly"),
    ("user and password of curl", "curl -s -u {} https://x", "me:secret"),
    ("password", "password={}", "hunter2"),
    ("password", "DB_PASSWORD: '{}'", "with spaces in it"),
    ("password", '{{"password": "{}"}}', "json,with;marks"),
    ("password by its short names", "MYSQL_PWD={}", "abcdef"),
    ("password by its short names", "pass: {}", "hunter2"),
    ("password", "passphrase => {}", "xyzzy1"),
    ("password flag", "mysql --password {} -h db", "hunter2"),
    ("password flag", "x --db-passwd={}", "hunter2"),
    ("secret", "client_secret: {}", "abc123"),
    ("secret", 'api_key="{}"', "abc123"),
    ("secret", "access_token={}&x=1", "abc123"),
    ("secret flag", "train.py --hf-token {}", "abc123"),
    ("secret flag", "train.py --api-key={}", "abc123"),
    ("token in an environment assignment", "export MY_SERVICE_TOKEN={}", "abcdefgh"),
    ("token in an environment assignment", "OPENAI_API_KEY='{}'", "whatever"),
    ("token with a value like one", "token: {}", "a1b2c3d4e5f6a7b8"),
]

UNTOUCHED = [
    "step 100/2000 loss=0.123 lr=1e-4 tokens/s=12345 eta 00:12:11",
    "tokens: 1024, max_tokens=256, num_tokens=4096, token_count: 12",
    "pad_token='</s>' eos_token: <|endoftext|> bos_token_id=1",
    "tokenizer=gpt2 special_tokens_map.json tokenizer_config.json",
    "tokens per second: 15,123.4 | token accuracy: 0.91",
    "epoch 3 pass=12 passed=4 bypass: 3 passes: 2",
    "PWD=/home/me/project and pwd: /srv/data",
    "key: value, keys=3, keyboard interrupt, monkey=1",
    "https://huggingface.co/gpt2/resolve/main/config.json?download=true",
    "git@github.com:me/project.git and me@example.org",
    "ssh://git@github.com/me/project.git",
    "hf_hub_download hf_config hf_model",
    "sk-learn scikit sk-1 task-force desk-lamp-shade-collection",
    "commit 3f786850e387550fdab836ed7e6dc881de23001b",
    "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "job 6f0a5c1e-3f63-5d0b-9a52-5c6d9b3f7a10 on n1 port 8470",
    "/usr/lib/python3.11/site-packages/torch/nn/modules/module.py:1518",
    "CUDA error: an illegal memory access was encountered (Xid 79)",
    "password: None",
    "api_key=${API_KEY}",
    "token=null secret=none",
    "basic usage: see the manual; bearer of news",
    "Idempotency-Key: 12",
    "secretary: Jane",
    "cookies accepted",
    "AKIA is a prefix, SK too, and AC DC",
    "eyJ is how they start",
    "-----BEGIN CERTIFICATE-----",
    "wandb: Run summary: loss 0.1",
    "ACCUMULATE=4 TOKENIZERS_PARALLELISM=false MONKEY=1 CUDA_VISIBLE_DEVICES=0,1",
]


@pytest.mark.parametrize(("name", "text", "secret"), HIDDEN, ids=[f"{i}-{case[0]}" for i, case in enumerate(HIDDEN)])
def test_a_secret_is_hidden_and_the_text_around_it_stays(name, text, secret):
    before = text.format(secret)
    after = redact(before)
    assert secret not in after
    assert REDACTED in after
    head = text.split("{}", maxsplit=1)[0].replace("{{", "{").split(" ")[0]
    assert after.startswith(head[:3]), after
    assert redact(after) == after


def test_every_format_has_a_specimen():
    assert {name for name, _, _ in HIDDEN} == {one.name for one in (*TOKENS, *CONTEXTS)}
    assert len(TOKENS) >= 40


@pytest.mark.parametrize("one", TOKENS, ids=lambda one: one.name)
def test_a_token_is_found_by_its_own_format(one):
    specimens = [text.format(secret) for name, text, secret in HIDDEN if name == one.name]
    assert specimens
    for text in specimens:
        assert re.search(one.pattern, text), text
        assert any(trigger in text.lower() for trigger in one.triggers), text


@pytest.mark.parametrize("text", UNTOUCHED)
def test_what_only_looks_like_a_secret_is_left_alone(text):
    assert redact(text) == text


@pytest.mark.parametrize(
    "kind", ["RSA PRIVATE KEY", "OPENSSH PRIVATE KEY", "PRIVATE KEY", "ENCRYPTED PRIVATE KEY", "PGP PRIVATE KEY BLOCK"]
)
def test_a_private_key_is_hidden_over_all_its_lines(kind):
    text = f"before\n-----BEGIN {kind}-----\nMIIEpAIBAAKCAQEA\nabcd\n-----END {kind}-----\nafter"
    assert redact(text) == f"before\n{REDACTED}\nafter"


def test_a_private_key_without_an_end_is_hidden_to_the_end():
    assert redact("x\n-----BEGIN PRIVATE KEY-----\nMIIE\nmore") == f"x\n{REDACTED}"


def test_several_secrets_in_several_lines_are_all_hidden():
    text = "a password=one\nb\r\nc token=a1b2c3d4e5f6a7b8 postgres://u:p@h/db\n"
    assert redact(text) == f"a password={REDACTED}\nb\r\nc token={REDACTED} postgres://{REDACTED}@h/db\n"


def test_what_cannot_be_read_is_dropped():
    assert redact(b"\xff\xfe password") == "[dropped: 11 bytes that are not UTF-8]"
    assert redact(b"password=x1y2") == f"password={REDACTED}"
    long = "x" * (LINE_CHARACTERS_MAX + 1)
    assert redact(f"a\n{long}\nb") == f"a\n[dropped: a line of {len(long)} characters]\nb"
    assert redact(long) == f"[dropped: a line of {len(long)} characters]"
    huge = "y\n" * TEXT_CHARACTERS_MAX
    assert redact(huge).endswith(f"[dropped: {TEXT_CHARACTERS_MAX} characters]")


KEYS = [
    *[
        (key, True)
        for key in (
            "password",
            "db_password",
            "token",
            "hf_token",
            "api_key",
            "apikey",
            "Authorization",
            "cookie",
            "client_secret",
            "secret",
            "private_key",
            "aws.secret_access_key",
        )
    ],
    *[
        (key, False)
        for key in (
            "tokens",
            "token_count",
            "max_tokens",
            "key",
            "job_id",
            "keys",
            "idempotency_key",
            "secretary",
            "passed",
            "author",
            "action",
        )
    ],
]


@pytest.mark.parametrize(("key", "secret"), KEYS)
def test_a_key_tells_whether_its_value_is_a_secret(key, secret):
    assert is_secret_key(key) is secret


def test_values_are_hidden_by_key_and_by_shape_at_any_depth():
    value = {
        "a": [{"password": {"inner": 1}}, "postgres://u:p@h"],
        "token": 7,
        "api_key": "x",
        "n": 1.5,
        "b": True,
        "none": None,
    }
    assert redact_value("value", value) == {
        "a": [{"password": REDACTED}, f"postgres://{REDACTED}@h"],
        "token": 7,
        "api_key": REDACTED,
        "n": 1.5,
        "b": True,
        "none": None,
    }


def test_values_that_are_not_json_are_shown_by_redacted_text_or_dropped():
    class Broken:
        def __str__(self) -> str:
            raise RuntimeError("no")

    class Talkative:
        def __str__(self) -> str:
            return "password=hunter2"

    nested: object = "end"
    for _ in range(DEPTH_MAX + 2):
        nested = [nested]
    assert redact_value("x", b"abc") == "[dropped: 3 bytes]"
    assert redact_value("x", Talkative()) == f"password={REDACTED}"
    assert redact_value("x", Broken()) == "[dropped: Broken whose text failed with RuntimeError]"
    assert "too deep" in str(redact_value("x", nested))


HOSTILE = [
    "a" * 16000,
    "eyJ" * 5000,
    "eyJaaaaaaaa." * 1300,
    "sk-" * 5000,
    "sk-ant-" * 2000,
    "://a:" * 3000,
    "://" + "a:" * 7000,
    "://a" * 4000,
    "password" * 1900,
    "password=" * 1700,
    "_TOKEN" * 2600,
    "pass=1" * 2600,
    "a_" * 8000,
    "a_pass" * 2000,
    "A_" * 8000 + "TOKEN",
    "AWS" * 5000,
    "aws secret " * 1400,
    "wandb" * 3000,
    "wandb " + "0" * 15000,
    "curl " * 3000,
    "curl " + "-u " * 5000,
    "token_" * 2600,
    "token=" * 2600,
    "Authorization: " * 1000,
    "bearer " * 2200,
    "basic " * 2600,
    "--a-" * 4000,
    "--token " * 2000,
    "secret_key" * 1500,
    "-----BEGIN A PRIVATE KEY-----" * 500,
    "M" * 8000 + "." * 8000,
    "abc8Q~" * 2600,
    ".atlasv1." * 1700,
    "cookie: " * 2000,
    "a1b2" * 4000,
    "?sig=" * 3000,
    " " * 16000,
    "=" * 16000,
    "'\"" * 8000,
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: text[:16])
def test_no_text_takes_more_than_time_linear_in_its_length(text):
    text = text[:LINE_CHARACTERS_MAX]
    redact(text)
    started = time.thread_time()
    redact(text)
    assert time.thread_time() - started < 0.25, "16 KiB of text; a quadratic pattern takes seconds"


@given(st.text(max_size=400))
def test_any_text_is_redacted_to_a_fixed_point(text):
    once = redact(text)
    assert redact(once) == once


@given(st.text(alphabet=A, min_size=36, max_size=36), st.text(max_size=60), st.text(max_size=60))
def test_a_token_is_hidden_wherever_it_stands(secret, before, after):
    token = f"ghp_{secret}"
    assert token not in redact(f"{before} {token} {after}")
