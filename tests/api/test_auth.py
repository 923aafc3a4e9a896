"""Authentication with a file of tokens, and protection against forged identity headers."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from falcon import testing

from tenure.api.app import create_app
from tenure.api.auth import TokenFileAuth, TokenFileError, TokenUser, read_token_file, write_token_file
from tests.api.rig import USERS, Api

UNAUTHORIZED = {
    "error": {
        "code": 401,
        "title": "Unauthorized",
        "message": "The request you have made requires authentication.",
    }
}
USER = TokenUser("u", "user", "p", "project", ("member", "reader"), "0123456789abcdef")


@pytest.mark.parametrize("token", [None, "", "wrong", "token-of-demo-012345678", "token-of-demo-01234567890", "\u00e9"])
def test_request_without_a_token_of_the_file_is_refused(shared_api: Api, token: str | None) -> None:
    headers = {} if token is None else {"X-Auth-Token": token}
    for method, path in (("GET", "/v1/leases"), ("POST", "/v1/leases"), ("GET", "/v1/os-hosts/1"), ("GET", "/v2")):
        result = shared_api.using("nobody at all").call(method, path, headers=headers)
        assert result.status_code == 401
        assert result.json == UNAUTHORIZED
        assert result.headers["content-type"] == "application/json"
        assert "www-authenticate" in result.headers


def test_refusal_has_the_form_of_all_errors_from_1_1_on(shared_api: Api) -> None:
    result = shared_api.using("nobody at all", "1.1").get("/v1/leases")
    assert result.status_code == 401
    assert (result.json["error_code"], result.json["error_name"]) == (401, "Unauthorized")
    assert result.headers["OpenStack-API-Version"] == "reservation 1.1"
    assert "www-authenticate" in result.headers


IDENTITY = {
    "X-Identity-Status": "Confirmed",
    "X-User-Id": "admin-user",
    "X-User-Name": "admin",
    "X-Project-Id": "admin-project",
    "X-Roles": "admin,member,reader",
    "X-Role": "admin",
    "X-Is-Admin-Project": "True",
    "X-Service-Identity-Status": "Confirmed",
    "X-Tenant-Id": "admin-project",
    "OpenStack-System-Scope": "all",
}


def test_identity_headers_of_clients_are_ignored(api: Api) -> None:
    assert api.using("nobody at all").get("/v1/leases", headers=IDENTITY).status_code == 401
    assert api.get("/v1/os-hosts", headers=IDENTITY).status_code == 403
    lease = api.post("/v1/leases", api.lease_body(reservations=[]), headers=IDENTITY).json["lease"]
    assert (lease["user_id"], lease["project_id"]) == ("demo-user", "demo-project")


def test_application_gets_the_identity_headers_of_keystone(tmp_path: Path) -> None:
    seen: dict[str, Any] = {}

    def inner(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        seen.update(environ)
        start_response("204 No Content", [])
        return []

    write_token_file(tmp_path / "tokens", [USER])
    auth = TokenFileAuth(inner, tmp_path / "tokens")
    testing.simulate_get(auth, "/", headers={"X-Auth-Token": USER.token, "X-Service-Roles": "admin"})
    identity = {name: value for name, value in seen.items() if name.startswith("HTTP_X_")}
    assert identity["HTTP_X_IDENTITY_STATUS"] == "Confirmed"
    assert (identity["HTTP_X_USER_ID"], identity["HTTP_X_PROJECT_ID"]) == ("u", "p")
    assert identity["HTTP_X_ROLES"] == "member,reader"
    assert "HTTP_X_SERVICE_ROLES" not in identity


def test_other_authentication_must_confirm_user_and_project(api: Api) -> None:
    manager, types = api.world.service.manager, api.world.service.components.types
    trusting = create_app(manager, types, lambda inner: inner)

    def status(**headers: str) -> int:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        return testing.simulate_get(trusting, "/v1/leases", headers=sent).status_code

    whole = {"X_Identity_Status": "Confirmed", "X_User_Id": "u", "X_Project_Id": "p", "X_Roles": "reader"}
    assert status(**whole) == 200
    assert status() == 401
    assert status(**{**whole, "X_Identity_Status": "Invalid"}) == 401
    assert status(**{**whole, "X_User_Id": ""}) == 401
    assert status(**{**whole, "X_Project_Id": ""}) == 403
    assert status(**{**whole, "X_Project_Id": "", "X_Roles": "admin"}) == 403


def test_token_file_is_written_for_its_owner_only_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "tokens.yaml"
    before = os.umask(0)
    try:
        write_token_file(path, USERS.values())
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_token_file(path) == tuple(USERS.values())
    with pytest.raises(FileExistsError):
        write_token_file(path, [USER])


def test_token_file_can_be_json(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    entry = {
        "user_id": "u",
        "user_name": "user",
        "project_id": "p",
        "project_name": "project",
        "roles": ["member"],
        "token": USER.token,
    }
    path.write_text(json.dumps({"users": [entry]}))
    path.chmod(0o600)
    assert read_token_file(path) == (USER,)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o400, 0o700, 0o660])
def test_token_file_with_another_mode_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "tokens"
    write_token_file(path, [USER])
    path.chmod(mode)
    with pytest.raises(TokenFileError, match="chmod 600") as caught:
        TokenFileAuth(lambda environ, start_response: [], path)
    assert USER.token not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "not as it must be"),
        ("users: []", "users"),
        ("[1, 2", "neither YAML nor JSON"),
        ("users: [{user_id: u, token: s3cret-s3cret-s3cret}]", "users.0.user_name: Field required"),
        ("users: [{token: short}]", "users.0.token"),
        ("users: [{token: 's3cret s3cret s3cret'}]", "users.0.token"),
        ("users: !!python/object/apply:os.system ['true']", "neither YAML nor JSON"),
        ("{users: [], others: s3cret-s3cret-s3cret}", "others"),
        ("users: []\nusers: [{token: s3cret-s3cret-s3cret}]", "line 2: 'users' is there already, in line 1"),
        ('{"users": [{"token": "s3cret-s3cret-s3cret", "token": "x"}]}', "line 1: 'token' is there already"),
        (
            "users:\n"
            + 2 * "- {user_id: u, user_name: u, project_id: p, project_name: p, roles: [r], token: s3cret-s3cret-s3}\n",
            "the same token to two users",
        ),
        (
            "users: [{user_id: u, user_name: u, project_id: p, project_name: p, roles: ['a,admin'], "
            "token: s3cret-s3cret-s3}]",
            "users.0.roles.0",
        ),
    ],
)
def test_refusal_of_a_token_file_shows_no_secrets(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "tokens"
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(TokenFileError) as caught:
        read_token_file(path)
    assert message in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_missing_token_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TokenFileError, match=r"nothing.*No such file"):
        read_token_file(tmp_path / "nothing")


def test_tokens_are_never_logged(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    api.book()
    api.post("/v1/leases", {})
    api.using("nobody at all").get("/v1/leases", headers={"X-Auth-Token": "a-secret-of-somebody"})
    assert "token-of" not in caplog.text
    assert "a-secret-of-somebody" not in caplog.text
    assert USER.token not in repr(USER)
