"""Masks passwords and tokens of URIs, in texts and in options, before they are written."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rlplug.config.sections import RunConfig
from rlplug.config.toml import as_mapping

MASK = "***"

# From the start of a word: a search from each of its letters would take the square of its length.
_SCHEME = r"(?<!\w)\w[\w+.\-]*"
_ENCODED = "%(?:25)*"
"""A percent sign, which may itself be encoded, again and again."""

# Up to the last @, because passwords may hold any character. Without a colon it is a user name or
# a token, which ends where the host would.
_USER_INFO = re.compile(rf"({_SCHEME}:(?:\\?/){{2}})([^\s/?#]*:\S*@|[^\s/?#]*@)(\S*)")
_USER_INFO_ENCODED = re.compile(
    rf"({_SCHEME}{_ENCODED}3A(?:/|{_ENCODED}2F){{2}})(\S*(?:@|{_ENCODED}40))(\S*)", re.IGNORECASE
)
_SECRET_WORD = "(?:tok|pass|pwd|secret|key|auth(?!or)|cred|signature|access)"
_SECRET_NAME = rf"[^\s=?&;%#/]*{_SECRET_WORD}[^\s=?&;%]*"
_QUERY = re.compile(
    rf"((?:[?&;#]|{_ENCODED}(?:3F|26|3B|23)){_SECRET_NAME}(?:=|{_ENCODED}3D))[^\s&]*", re.IGNORECASE
)
# The same in a text that is one URI, maybe after `key=`: it may hold white space, too.
_WHOLE_URI = re.compile(rf"\S*?{_SCHEME}://")
_WHOLE_USER_INFO = re.compile(rf"({_SCHEME}://)([^/?#]*:.*@|[^/?#]*@)(.*)", re.DOTALL)
_WHOLE_QUERY = re.compile(rf"([?&;#]{_SECRET_NAME}=)[^&]*", re.IGNORECASE)
_KEY = "(?:password|passwd|pwd|secret|token|credentials?|(?:api|access)[_-]?key)"
_HTTP = re.compile(r"https?://[^\s\"',]+")
_PATH = re.compile(rf"(/{_KEY}/)[^/?#]+", re.IGNORECASE)
_SECRET_KEY = re.compile(rf"(?:.*[\W_])?{_KEY}", re.IGNORECASE)
"""The names of options, tags and arguments whose values are masked, whatever they hold."""


_PASSWORD = re.compile(rb"://[^\s/?#@:]{0,99}:[^\s/?#@]{1,99}@")


def has_password(content: bytes) -> bool:
    """Whether binary content, such as a pickle, holds a URI with a password."""
    return _PASSWORD.search(content) is not None


def without_secrets(text: str) -> str:
    """The text without what is or may be secret in the URIs in it.

    Masked are user names, passwords, and parameters such as `?token=`: as they are written, and
    as JSON, TOML, a shell or percent encoding write them. Where it is not clear where a password
    ends, too much is masked.
    """
    if "://" in text and _WHOLE_URI.match(text):
        text = _WHOLE_USER_INFO.sub(_without_user_info, text)
        text = _WHOLE_QUERY.sub(rf"\1{MASK}", text)
    text = _USER_INFO_ENCODED.sub(_without_user_info, _USER_INFO.sub(_without_user_info, text))
    text = _QUERY.sub(rf"\1{MASK}", text)
    return _HTTP.sub(lambda uri: _PATH.sub(rf"\1{MASK}", uri[0]), text)


def _without_user_info(found: re.Match[str]) -> str:
    scheme, user_info, rest = found.groups()
    # Of `http://a:b?token=c@d` nobody knows whether `d` is the host or belongs to the token.
    return f"{scheme}{MASK}@{MASK if _QUERY.search(user_info) else without_secrets(rest)}"


def masked(value: Any, name: str = "") -> Any:
    """Plain values, with every text in them without secrets, or masked by its name."""
    if isinstance(value, str):
        return MASK if value and _SECRET_KEY.fullmatch(name) else without_secrets(value)
    if isinstance(value, Mapping):
        return {key: masked(one, str(key)) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [masked(one, name) for one in value]
    return value


def without_masked(options: Mapping[str, Any]) -> dict[str, Any]:
    """Recorded options without those that were masked: they stay as they are now."""
    return {name: value for name, value in options.items() if MASK not in str(value)}


def masked_toml(config: RunConfig) -> str:
    """The complete config without secrets: what is left out must come from the environment."""
    import tomli_w

    return tomli_w.dumps(masked(as_mapping(config)))
