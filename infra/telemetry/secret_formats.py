"""What secrets look like: published token formats, as data.

Every pattern is linear: it begins at a token's start (a look-behind), has no nested repetition, and each repetition is
either bounded or the last thing in the pattern. `triggers` are lower-case words of which one must occur in the text before
the pattern is tried at all. The group `secret`, where there is one, is what is replaced; else the whole match is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class SecretFormat:
    """One kind of secret."""

    name: str
    triggers: tuple[str, ...]
    pattern: str


_START: Final = r"(?<![A-Za-z0-9_])"  # the start of a token
_END: Final = r"(?![A-Za-z0-9_-])"
_VALUE: Final = r"""(?:"(?P<a>[^"\n]{1,4096})"|'(?P<b>[^'\n]{1,4096})'|(?P<c>[^\s"',;&<>()\[\]{}]{1,4096}))"""


def _prefixed(name: str, trigger: str, tail: str) -> SecretFormat:
    return SecretFormat(name, (trigger.lower(),), _START + trigger + tail)


TOKENS: Final[tuple[SecretFormat, ...]] = (
    SecretFormat(
        "AWS access key id", ("akia", "asia", "abia", "acca"), _START + r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{16}" + _END
    ),
    SecretFormat(
        "AWS secret access key",
        ("secret",),
        r"(?i)aws.{0,20}?secret.{0,20}?['\"\s:=]{1,10}(?P<secret>[A-Za-z0-9/+=]{40})(?![A-Za-z0-9/+=])",
    ),
    SecretFormat(
        "AWS session token", ("session",), r"(?i)aws_?session_?token['\"\s:=]{1,10}(?P<secret>[A-Za-z0-9/+=]{16,})"
    ),
    _prefixed("Google API key", "AIza", r"[0-9A-Za-z_-]{35}"),
    _prefixed("Google OAuth access token", "ya29", r"\.[0-9A-Za-z_-]{20,}"),
    _prefixed("Google OAuth client secret", "GOCSPX", r"-[0-9A-Za-z_-]{20,}"),
    SecretFormat("Google refresh token", ("1//0",), r"(?<![A-Za-z0-9_/])1//0[0-9A-Za-z_-]{20,}"),
    SecretFormat("Azure storage account key", ("accountkey",), r"(?i)accountkey=(?P<secret>[A-Za-z0-9+/=]{40,})"),
    SecretFormat("Azure shared access signature", ("sig=",), r"(?i)[?&;]sig=(?P<secret>[A-Za-z0-9%+/=_-]{20,})"),
    SecretFormat("Azure service bus key", ("sharedaccesskey",), r"(?i)sharedaccesskey=(?P<secret>[A-Za-z0-9+/=]{20,})"),
    SecretFormat(
        "Azure client secret",
        ("8q~", "7q~"),
        r"(?<![A-Za-z0-9_~.-])[A-Za-z0-9_~.-]{3}[78]Q~[A-Za-z0-9_~.-]{31,34}(?![A-Za-z0-9_~.-])",
    ),
    SecretFormat("GitHub token", ("ghp_", "gho_", "ghu_", "ghs_", "ghr_"), _START + r"gh[pousr]_[A-Za-z0-9]{20,}"),
    _prefixed("GitHub fine-grained token", "github_pat_", r"[A-Za-z0-9_]{20,}"),
    SecretFormat(
        "GitLab token",
        ("glpat-", "gldt-", "glrt-", "glcbt-", "glptt-", "glft-", "glsoat-", "glagent-", "gloas-", "glimt-", "glffct-"),
        _START + r"gl(?:pat|dt|rt|cbt|ptt|ft|soat|agent|oas|imt|ffct)-[A-Za-z0-9_.-]{16,}",
    ),
    SecretFormat(
        "Slack token",
        ("xoxb", "xoxp", "xoxa", "xoxr", "xoxs", "xoxo", "xoxe", "xoxd", "xoxc"),
        _START + r"xox[abcdeoprs][.-][A-Za-z0-9.-]{10,}",
    ),
    SecretFormat("Slack app token", ("xapp-",), _START + r"xapp-[0-9A-Za-z-]{10,}"),
    SecretFormat(
        "Slack web hook",
        ("hooks.slack.com",),
        r"hooks\.slack\.com/(?:services|workflows|triggers)/(?P<secret>[A-Za-z0-9/_+-]{10,})",
    ),
    SecretFormat("Discord web hook", ("/api/webhooks/",), r"/api/webhooks/(?P<secret>[0-9]{10,25}/[A-Za-z0-9_-]{20,})"),
    SecretFormat(
        "Discord bot token",
        (".",),
        r"(?<![A-Za-z0-9_.-])[MNO][A-Za-z0-9_-]{23,25}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,40}(?![A-Za-z0-9_.-])",
    ),
    SecretFormat("Telegram bot token", (":aa",), r"(?<![0-9A-Za-z])[0-9]{8,10}:AA[A-Za-z0-9_-]{32,33}" + _END),
    SecretFormat("Hugging Face token", ("hf_", "api_org_"), _START + r"(?:hf_|api_org_)[A-Za-z0-9]{20,}"),
    SecretFormat("Anthropic key", ("sk-ant-",), r"(?<![A-Za-z0-9_-])sk-ant-[A-Za-z0-9_-]{20,}"),
    SecretFormat(
        "OpenAI key", ("sk-",), r"(?<![A-Za-z0-9_-])sk-(?:proj-|svcacct-|admin-|or-v1-|lf-)?[A-Za-z0-9_-]{20,}"
    ),
    _prefixed("Groq key", "gsk_", r"[A-Za-z0-9]{20,}"),
    _prefixed("xAI key", "xai-", r"[A-Za-z0-9]{20,}"),
    _prefixed("Replicate token", "r8_", r"[A-Za-z0-9]{30,}"),
    _prefixed("Perplexity key", "pplx-", r"[A-Za-z0-9]{30,}"),
    _prefixed("NVIDIA API key", "nvapi-", r"[A-Za-z0-9_-]{20,}"),
    SecretFormat("npm token", ("npm_",), _START + r"npm_[A-Za-z0-9]{30,}"),
    SecretFormat(
        "npm registry credential",
        ("_authtoken", "_auth", "_password"),
        r"(?i)_(?:authtoken|auth|password)\s{0,3}=\s{0,3}(?P<secret>[^\s]{6,})",
    ),
    SecretFormat("PyPI token", ("pypi-",), _START + r"pypi-[A-Za-z0-9_-]{16,}"),
    _prefixed("RubyGems key", "rubygems_", r"[a-f0-9]{32,}"),
    _prefixed("crates.io token", "cio", r"[A-Za-z0-9]{32}(?![A-Za-z0-9])"),
    SecretFormat("Docker Hub token", ("dckr_pat_", "dckr_oat_"), _START + r"dckr_(?:pat|oat)_[A-Za-z0-9_-]{20,}"),
    SecretFormat(
        "JSON web token", ("eyj",), r"(?<![A-Za-z0-9_.-])eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?"
    ),
    SecretFormat(
        "Stripe key",
        ("sk_live", "sk_test", "rk_live", "rk_test", "whsec_"),
        _START + r"(?:[sr]k_(?:live|test)_|whsec_)[A-Za-z0-9+/=]{10,}",
    ),
    SecretFormat("SendGrid key", ("sg.",), r"(?<![A-Za-z0-9_.-])SG\.[A-Za-z0-9_-]{16,32}\.[A-Za-z0-9_-]{16,64}"),
    SecretFormat("Twilio key", ("sk", "ac"), _START + r"(?:SK|AC)[0-9a-f]{32}" + _END),
    SecretFormat("Mailgun key", ("key-",), _START + r"key-[0-9a-f]{32}" + _END),
    SecretFormat("Mailchimp key", ("-us",), _START + r"[0-9a-f]{32}-us[0-9]{1,2}" + _END),
    SecretFormat("Square token", ("sq0", "eaaa"), _START + r"(?:sq0[a-z]{3}-[0-9A-Za-z_-]{22,}|EAAA[A-Za-z0-9_-]{60})"),
    SecretFormat("Shopify token", ("shp",), _START + r"shp(?:at|ca|pa|ss)_[a-fA-F0-9]{32}"),
    SecretFormat("DigitalOcean token", ("dop_v1_", "doo_v1_", "dor_v1_"), _START + r"do[opr]_v1_[a-f0-9]{64}"),
    SecretFormat("Heroku key", ("hrku-",), _START + r"HRKU-[A-Za-z0-9_-]{20,}"),
    SecretFormat("Linear key", ("lin_api_", "lin_oauth_"), _START + r"lin_(?:api|oauth)_[A-Za-z0-9]{30,}"),
    SecretFormat("Notion token", ("secret_", "ntn_"), _START + r"(?:secret_[A-Za-z0-9]{43}|ntn_[A-Za-z0-9]{40,})"),
    SecretFormat("Figma token", ("figd_",), _START + r"figd_[A-Za-z0-9_-]{20,}"),
    SecretFormat("Grafana token", ("glc_", "glsa_"), _START + r"gl(?:c|sa)_[A-Za-z0-9+/=_]{20,}"),
    SecretFormat("New Relic key", ("nrak-", "nrjs-", "nral"), _START + r"NR(?:AK|JS|II|IQ|RA)-[A-Za-z0-9]{19,}"),
    SecretFormat("Sentry token", ("sntrys_", "sntryu_"), _START + r"sntry[su]_[A-Za-z0-9+/=_-]{30,}"),
    SecretFormat("Databricks token", ("dapi",), _START + r"dapi[a-f0-9]{32}(?:-[0-9])?" + _END),
    SecretFormat("HashiCorp Vault token", ("hvs.", "hvb.", "hvr."), r"(?<![A-Za-z0-9_.-])hv[sbr]\.[A-Za-z0-9_-]{20,}"),
    SecretFormat(
        "Terraform Cloud token", (".atlasv1.",), r"(?<![A-Za-z0-9_.-])[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_=-]{40,}"
    ),
    SecretFormat("age key", ("age-secret-key-",), _START + r"AGE-SECRET-KEY-1[A-Z0-9]{50,}"),
    SecretFormat("Tailscale key", ("tskey-",), _START + r"tskey-[a-z]{2,10}-[A-Za-z0-9-]{10,}"),
    SecretFormat("Atlassian token", ("atatt3", "atctt3"), _START + r"AT[AC]TT3[A-Za-z0-9_=-]{50,}"),
    SecretFormat("Postman key", ("pmak-",), _START + r"PMAK-[a-f0-9]{24}-[a-f0-9]{34}"),
    SecretFormat("PlanetScale credential", ("pscale_",), _START + r"pscale_(?:tkn|pw|oauth)_[A-Za-z0-9_.=-]{20,}"),
    SecretFormat("Supabase key", ("sbp_",), _START + r"sbp_[a-f0-9]{40}"),
    SecretFormat(
        "Comet, Neptune and ClearML keys",
        ("_api_key", "_api_token", "_secret_key"),
        r"(?i)(?:comet|neptune|clearml)_(?:api_|api_access_|api_secret_)?(?:key|token|secret_key)\s{0,3}[=:]\s{0,3}['\"]?(?P<secret>[^\s'\"]{8,})",
    ),
    SecretFormat(
        "Weights & Biases key", ("wandb",), r"(?i)wandb.{0,60}?(?<![0-9a-f])(?P<secret>[0-9a-f]{40})(?![0-9a-f])"
    ),
    SecretFormat("Weights & Biases key, v1", ("wandb_v1_",), _START + r"wandb_v1_[A-Za-z0-9_]{20,}"),
)

CONTEXTS: Final[tuple[SecretFormat, ...]] = (
    SecretFormat(
        "credentials in a URL",
        ("://",),
        r"(?<=://)(?P<secret>[^\s/?#:@\"'<>]{0,200}:[^\s/?#\"'<>]{1,500}|[^\s/?#:@\"'<>]{20,500})@",
    ),
    SecretFormat(
        "Authorization header",
        ("authorization",),
        r"(?i)authorization['\"]?\s{0,4}[:=]\s{0,4}['\"]?(?:(?:bearer|basic|token|digest|negotiate|apikey|aws4-hmac-sha256)\s{1,4})?(?P<secret>[^\s'\"][^\r\n'\"]{0,4096})",
    ),
    SecretFormat("bearer token", ("bearer ",), r"(?i)(?<![A-Za-z0-9])bearer\s{1,4}(?P<secret>[A-Za-z0-9._~+/=-]{16,})"),
    SecretFormat(
        "basic credentials",
        ("basic ",),
        r"(?i)(?<![A-Za-z0-9])basic\s{1,4}(?P<secret>[A-Za-z0-9+/]{16,}={0,2})(?![A-Za-z0-9+/])",
    ),
    SecretFormat(
        "cookie", ("cookie",), r"(?i)(?<![A-Za-z0-9])(?:set-)?cookie['\"]?\s{0,4}:\s{0,4}(?P<secret>[^\r\n]{4,4096})"
    ),
    SecretFormat(
        "user and password of curl",
        ("curl",),
        r"(?<![A-Za-z0-9])curl\s[^\r\n]{0,500}?(?:-u|--user)[ =](?P<secret>[^\s:]{1,100}:[^\s]{1,200})",
    ),
    SecretFormat(
        "password",
        ("pass", "pwd"),
        r"(?i)(?:password|passwd|passphrase)[A-Za-z0-9_]{0,20}['\"]?\s{0,4}(?::=|=>|=|:)\s{0,4}" + _VALUE,
    ),
    SecretFormat(
        "password by its short names",  # not `pass=12` of a training log, nor the working directory that PWD is too
        ("pass", "pwd"),
        r"(?i)(?<![a-z])(?:[a-z0-9]{1,30}_)?(?:pass|pwd)['\"]?\s{0,4}(?::=|=>|=|:)\s{0,4}(?![\d.,]{1,20}(?![^\s,;]))(?!['\"]?[/~.])"
        + _VALUE,
    ),
    SecretFormat(
        "password flag",
        ("--pass", "--pwd"),
        r"(?i)--(?:[a-z]{1,20}-)?(?:password|passwd|passphrase|pass|pwd)[ =]" + _VALUE,
    ),
    SecretFormat(
        "secret",
        (
            "secret",
            "api_key",
            "apikey",
            "api-key",
            "access_key",
            "access-key",
            "accesskey",
            "private_key",
            "private-key",
            "auth_token",
            "auth-token",
            "access_token",
            "access-token",
            "refresh_token",
            "refresh-token",
            "id_token",
            "bearer_token",
            "client_secret",
            "credential",
            "session_token",
            "x-api",
            "encryption_key",
            "signing_key",
        ),
        r"(?i)(?:secret(?:[_-]?(?:access)?[_-]?key)?|(?:api|access|private|encryption|signing)[_-]?key|(?:auth|access|refresh|id|bearer|session)[_-]?token|credentials?)"
        r"['\"]?\s{0,4}(?::=|=>|=|:)\s{0,4}" + _VALUE,
    ),
    SecretFormat(
        "secret flag",
        ("--",),
        r"(?i)--(?:[a-z]{1,20}-){0,2}(?:token|secret|api-?key|access-?key|secret-?key|private-?key|credentials?)[ =]"
        + _VALUE,
    ),
    SecretFormat(
        "token in an environment assignment",
        ("token", "_key", "_pat", "_secret", "_cred"),
        r"(?<![A-Z0-9_])[A-Z][A-Z0-9_]{0,60}?_?(?:TOKEN|API_?KEY|SECRET|_KEY|_PAT|_PSK|CREDENTIALS?)\s{0,2}=\s{0,2}"
        + _VALUE,
    ),
    SecretFormat(
        "token with a value like one",
        ("token",),
        r"(?i)(?<![a-z])(?:[a-z0-9]{1,20}_)?token['\"]?\s{0,4}(?::=|=>|=|:)\s{0,4}['\"]?(?P<secret>(?=[A-Za-z0-9_.~+/=-]{0,64}[0-9])[A-Za-z0-9_.~+/=-]{16,})",
    ),
)
