"""Passwords and tokens in URIs are written nowhere, whatever they hold."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
import tomli_w
from hypothesis import example, given
from hypothesis import strategies as st

import rlplug
from rlplug.config.secrets import masked, without_masked, without_secrets
from rlplug.errors import RequestError
from rlplug.tracking.location import tracking_uri
from rlplug.tracking.record import command_line
from tests.envs import OneStep

BEGIN, END = "ZQ", "QZ"
"""What the passwords of these tests begin and end with, and nothing else does."""

printable = st.characters(min_codepoint=33, exclude_categories=("Z", "C"))
passwords = st.text(printable, max_size=12).map(lambda text: f"{BEGIN}{text}{END}")
any_passwords = st.text(max_size=12).map(lambda text: f"{BEGIN}{text}{END}")

URIS: tuple[Callable[[str], str], ...] = (
    lambda password: f"https://user:{password}@host:5000/mlflow",
    lambda password: f"http://me@firm.com:{password}@host",
    lambda password: f"postgresql+psycopg2://user:{password}@host/db?sslmode=require",
    lambda password: f"postgresql://host/db?user=me&password={password.replace('&', '')}&x=1",
    lambda password: f"https://host/?token={password.replace('&', '')}",
    lambda password: f"https://host/a?X-Amz-Signature={password.replace('&', '')}#there",
    lambda password: f"mssql:///?odbc_connect=DRIVER%3DX%3BPWD%3D{quote(password, safe='')}",
)

WRITTEN: tuple[Callable[[str], str], ...] = (
    str,
    repr,
    json.dumps,
    lambda uri: json.dumps({"uri": uri, "more": [uri, 1]}),
    lambda uri: tomli_w.dumps({"tracking": {"uri": uri, "enabled": True}}),
    shlex.quote,
    quote,
    quote_plus,
    lambda uri: quote(uri, safe=""),
    lambda uri: quote(quote(uri, safe=""), safe=""),
    lambda uri: json.dumps(uri).replace("/", "\\/"),
)


def hides(text: str) -> bool:
    return BEGIN not in text and END not in text


@given(passwords, st.sampled_from(URIS), st.sampled_from(WRITTEN))
@example("ZQa@b/c'd?e\"f\\g#h:iQZ", URIS[0], WRITTEN[2])
@example("ZQa?token=b@cQZ", URIS[0], str)
@example("ZQ@QZ", URIS[3], quote)
@example("ZQ@QZ", lambda password: f"https://host:80/db?password={password}", str)
@example("ZQ", lambda password: f"https://to@host/a,https://b:{password}@host", str)
def test_no_part_of_a_password_is_left_however_it_is_written(
    password: str, uri: Callable[[str], str], write: Callable[[str], str]
) -> None:
    text = write(uri(password))
    assert hides(without_secrets(text))
    assert hides(without_secrets(f"OSError: the URI {text} does not answer: timeout"))
    assert hides(without_secrets(f"first line\nuri={text}\nlast line"))


@given(any_passwords, st.sampled_from(URIS[:-1]))
def test_an_option_hides_passwords_with_white_space_too(
    password: str, uri: Callable[[str], str]
) -> None:
    hidden = masked({"a": [uri(password)], "b": {"c": uri(password)}, "d": 3, "e": True})
    assert hides(str(hidden))
    assert (hidden["d"], hidden["e"]) == (3, True)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://u:p@host:5000/x", "https://***@host:5000/x"),
        ("https://u:p@s/s'w?d@host/x", "https://***@host/x"),
        ("at postgresql://u:p@host/db, today", "at postgresql://***@host/db, today"),
        ("https://host/x?a=1&token=abc&b=2", "https://host/x?a=1&token=***&b=2"),
        ("https://host/x?api_key=abc", "https://host/x?api_key=***"),
        ("https://host/x#tok=abc&a=1", "https://host/x#tok=***&a=1"),
        ("https://host/#/3?access_token=abc", "https://host/#/3?access_token=***"),
        ("https://host/token/abc/runs", "https://host/token/***/runs"),
        ("https://host/tokens/3", "https://host/tokens/3"),
        ("git@github.com:me/it.git", "git@github.com:me/it.git"),
        ("https://TOKEN@github.com/me/it.git", "https://***@github.com/me/it.git"),
        ("https://github.com/me/it@v1", "https://github.com/me/it@v1"),
        ("sqlite:////home/me:a@b/mlflow.db", "sqlite:////home/me:a@b/mlflow.db"),
        ("see http://h:80/#/3, or me@x", "see http://h:80/#/3, or me@x"),
        ("https://host/?author=me&page=2", "https://host/?author=me&page=2"),
        ("mail me@firm.com, token=3", "mail me@firm.com, token=3"),
    ],
)
def test_what_is_no_secret_stays(text: str, shown: str) -> None:
    assert without_secrets(text) == shown
    assert without_secrets(shown) == shown


def test_what_its_name_says_is_a_secret_is_masked() -> None:
    options = {"password": "a", "db_password": "b", "api-key": "c", "key": "d", "tokens": 3}
    shown = {"password": "***", "db_password": "***", "api-key": "***", "key": "d", "tokens": 3}
    assert masked(options) == shown
    assert masked({"tags": [options]}) == {"tags": [shown]}
    words = ["rlplug", "run", "--tag", "password=a", "--set", "env.token=b", "--seed=3"]
    assert command_line(words) == "rlplug run --tag 'password=***' --set 'env.token=***' --seed=3"


def test_options_that_were_masked_are_left_out_of_those_to_set() -> None:
    options = {"uri": URIS[0]("secret"), "sizes": [64, 64], "parts": [URIS[0]("secret")], "a": "b"}
    assert without_masked(masked(options)) == {"sizes": [64, 64], "a": "b"}


# -- a recorded run is run again ------------------------------------------------------------------

SHOWN = "https://***@host:5000"
GIVEN = "https://me:a@b'c@host:5000"


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({"MLFLOW_TRACKING_URI": GIVEN}, GIVEN),
        ({"MLFLOW_TRACKING_URI": f"{GIVEN}/"}, GIVEN),
        (
            {"MLFLOW_TRACKING_USERNAME": "me", "MLFLOW_TRACKING_PASSWORD": "x"},
            "https://host:5000",
        ),
        ({"MLFLOW_TRACKING_TOKEN": "x"}, "https://host:5000"),
    ],
)
def test_what_was_masked_is_taken_from_the_environment(
    environ: Mapping[str, str], found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_environment(monkeypatch, environ)
    assert tracking_uri(SHOWN, Path("/runs")) == found


def set_environment(monkeypatch: pytest.MonkeyPatch, environ: Mapping[str, str]) -> None:
    for name in ("URI", "USERNAME", "PASSWORD", "TOKEN"):
        monkeypatch.delenv(f"MLFLOW_TRACKING_{name}", raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("option", "environ"),
    [
        (SHOWN, {}),
        (SHOWN, {"MLFLOW_TRACKING_URI": "https://me:x@another:5000"}),
        (SHOWN, {"MLFLOW_TRACKING_URI": SHOWN}),
        (SHOWN, {"MLFLOW_TRACKING_USERNAME": "me"}),
        ("", {"MLFLOW_TRACKING_URI": SHOWN}),
        ("postgresql://***@host/db", {"MLFLOW_TRACKING_TOKEN": "x"}),
        ("https://host?token=***", {"MLFLOW_TRACKING_TOKEN": "x"}),
    ],
)
def test_a_masked_uri_without_its_password_is_refused_with_the_variable_to_set(
    option: str, environ: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_environment(monkeypatch, environ)
    with pytest.raises(RequestError, match="is without its password") as raised:
        tracking_uri(option, Path("/runs"))
    assert "try: set MLFLOW_TRACKING_URI to the same URI with the password" in str(raised.value)


class Dials(OneStep):
    """Keeps the address that it is given."""

    def __init__(self, url: str = "") -> None:
        super().__init__()
        self.url = url


def test_a_password_in_an_option_of_an_environment_is_in_no_file_of_the_run(home: Path) -> None:
    # Not as it stands here: changes of the working folder are recorded.
    password = "hunter" * 2
    options = {"env.url": f"https://me:{password}@host/x", "tracking.enabled": False}
    result = rlplug.run("a2c", Dials, steps=64, options={**options, "checkpoint.every": 32})
    files = [file for file in result.folder.rglob("*") if file.is_file()]
    assert any(file.suffix == ".safetensors" for file in files)
    assert not [file for file in files if password.encode() in file.read_bytes()]
