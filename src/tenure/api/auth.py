"""Authentication without Keystone: a file of tokens.

The file is YAML (or JSON, which is YAML too), readable by its owner only:

    users:
      - user_id: demo
        user_name: demo
        project_id: demo-project
        project_name: demo-project
        roles: [member, reader]
        token: 9f0c1d...

The application gets the identity of the caller in the headers of the request, as from keystonemiddleware.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import stat
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, StrictStr, ValidationError

from tenure.operator_yaml import RepeatedKey, read_yaml

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

#: The only mode that a token file may have.
MODE = 0o600
#: A shorter token could be guessed.
MIN_TOKEN_LENGTH = 16

#: The prefixes of all headers with the identity of the caller; only this service may set them.
_IDENTITY_PREFIXES = (
    "HTTP_X_IDENTITY",
    "HTTP_X_USER",
    "HTTP_X_PROJECT",
    "HTTP_X_DOMAIN",
    "HTTP_X_ROLE",
    "HTTP_X_TENANT",
    "HTTP_X_SERVICE",
    "HTTP_X_IS_ADMIN",
    "HTTP_X_TRUST",
    "HTTP_X_SYSTEM",
    "HTTP_OPENSTACK_SYSTEM_SCOPE",
    "HTTP_X_AUTHORIZATION",
)

_Word = Annotated[StrictStr, Field(min_length=1, max_length=255, pattern=r"^[\x21-\x7e]+$")]


class TokenFileError(ValueError):
    """A token file that cannot be used; the text gives the reason, and never contains a token."""


@dataclass(frozen=True, slots=True)
class TokenUser:
    """A user of the standalone service, in a project."""

    user_id: str
    user_name: str
    project_id: str
    project_name: str
    roles: tuple[str, ...]
    token: str = field(repr=False)


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    user_id: _Word
    user_name: _Word
    project_id: _Word
    project_name: _Word
    roles: Annotated[list[Annotated[StrictStr, Field(pattern=r"^[\x21-\x2b\x2d-\x7e]+$")]], Field(min_length=1)]
    token: Annotated[_Word, Field(min_length=MIN_TOKEN_LENGTH)]


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    users: Annotated[list[_Entry], Field(min_length=1)]


#: What a role implies, as in Keystone.
_IMPLIED = {"admin": ("member", "reader"), "member": ("reader",)}


def _with_implied(roles: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(implied for role in roles for implied in (role, *_IMPLIED.get(role, ()))))


def read_token_file(
    path: str | os.PathLike[str], *, known_roles: Collection[str] | None = None
) -> tuple[TokenUser, ...]:
    """Return the users of a token file, with their implied roles.

    Raises ``TokenFileError`` if the file is not safe or not valid, and for a role that is not in ``known_roles``.
    """
    try:
        with open(path, "rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode != MODE:
                raise TokenFileError(
                    f"The token file {path} has the mode {mode:04o}; "
                    f"make it readable by its owner only: chmod 600 {path}"
                )
            content = file.read()
    except OSError as error:
        raise TokenFileError(f"The token file {path} cannot be read: {error.strerror}") from None
    try:
        entries = _File.model_validate(read_yaml(content)).users
    except RepeatedKey as error:
        raise TokenFileError(f"The token file {path}, {error}") from None
    except yaml.YAMLError:
        raise TokenFileError(f"The token file {path} is neither YAML nor JSON") from None
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'file'}: {e['msg']}" for e in error.errors())
        raise TokenFileError(f"The token file {path} is not as it must be: {problems}") from None
    if len({entry.token for entry in entries}) != len(entries):
        raise TokenFileError(f"The token file {path} gives the same token to two users")
    for entry in entries:
        unknown = sorted(set(entry.roles) - set(known_roles)) if known_roles is not None else []
        if unknown:
            raise TokenFileError(
                f"The token file {path} gives {entry.user_name} the role {unknown[0]}, which is none of "
                f"{', '.join(sorted(known_roles or ()))}"
            )
    return tuple(TokenUser(**{**entry.model_dump(), "roles": _with_implied(entry.roles)}) for entry in entries)


def write_token_file(path: str | os.PathLike[str], users: Iterable[TokenUser]) -> None:
    """Write a token file that only its owner can read. It must not exist yet."""
    document = {"users": [{**asdict(user), "roles": list(user.roles)} for user in users]}
    descriptor = os.open(Path(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL, MODE)
    with open(descriptor, "w", encoding="utf-8") as file:
        os.fchmod(file.fileno(), MODE)  # independent of the umask
        yaml.safe_dump(document, file, sort_keys=False)


class TokenUsers:
    """The users of a token file, by their tokens. The file is read once."""

    def __init__(self, path: str | os.PathLike[str], *, known_roles: Collection[str] | None = None) -> None:
        """Read the file; raises ``TokenFileError``."""
        users = read_token_file(path, known_roles=known_roles)
        self._users: Sequence[tuple[bytes, TokenUser]] = [(_digest(user.token), user) for user in users]
        #: All of them, with their projects.
        self.accounts = users

    def find(self, token: str) -> TokenUser | None:
        """Return the user with the token. The duration does not depend on the token, right or wrong."""
        given = _digest(token)
        owner = None
        for digest, user in self._users:
            if hmac.compare_digest(digest, given):
                owner = user
        return owner


class TokenFileAuth:
    """Admits requests with a token of the file, and gives the application the identity of the caller.

    Identity headers of the client are removed. The file is read once, when the process starts.
    """

    def __init__(
        self, app: WSGIApplication, path: str | os.PathLike[str], *, known_roles: Collection[str] | None = None
    ) -> None:
        self._app = app
        self._users = TokenUsers(path, known_roles=known_roles)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        for name in [name for name in environ if name.startswith(_IDENTITY_PREFIXES)]:
            del environ[name]
        user = self._users.find(environ.get("HTTP_X_AUTH_TOKEN", ""))
        if user is None:
            return _refuse(start_response)
        environ.update(_headers(user))
        return self._app(environ, start_response)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def _headers(user: TokenUser) -> Mapping[str, str]:
    return {
        "HTTP_X_IDENTITY_STATUS": "Confirmed",
        "HTTP_X_USER_ID": user.user_id,
        "HTTP_X_USER_NAME": user.user_name,
        "HTTP_X_USER_DOMAIN_ID": "default",
        "HTTP_X_USER_DOMAIN_NAME": "Default",
        "HTTP_X_PROJECT_ID": user.project_id,
        "HTTP_X_PROJECT_NAME": user.project_name,
        "HTTP_X_PROJECT_DOMAIN_ID": "default",
        "HTTP_X_PROJECT_DOMAIN_NAME": "Default",
        "HTTP_X_ROLES": ",".join(user.roles),
    }


def _refuse(start_response: StartResponse) -> Iterable[bytes]:
    """Answer like keystonemiddleware."""
    error: dict[str, Any] = {
        "code": 401,
        "title": "Unauthorized",
        "message": "The request you have made requires authentication.",
    }
    body = json.dumps({"error": error}).encode()
    start_response(
        "401 Unauthorized",
        [
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(body))),
            ("WWW-Authenticate", 'X-Auth-Token realm="tenure"'),
        ],
    )
    return [body]
