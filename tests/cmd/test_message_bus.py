"""Invalid options of the message bus: reported in one line with the option, and without a password."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from oslo_config.cfg import ConfigOpts

from tenure.config import new_config, read_config
from tenure.deployment import ConfigurationError, open_api, open_manager
from tests.support.deployment import Options, write_config

#: Parts of a password that must never be shown.
SECRETS = ("s3cr3t", "0815")

WRONG_URLS = {
    "no scheme": "//tenure:s3cr3t-0815@controller/",
    "no such bus": "rabit://tenure:s3cr3t-0815@controller/",
    "nothing but an account": "tenure:s3cr3t-0815@controller",
    "a slash in the password": "rabbit://tenure:s3cr3t/0815@controller:5672/",
    "a question mark in the password": "rabbit://tenure:s3cr3t?0815@controller:5672/",
    "a bracket in the password": "rabbit://tenure:s3cr3t[0815@controller:5672/",
    "no number for a port": "rabbit://tenure:s3cr3t-0815@controller:amqp/",
}


def configured(folder: Path, options: Options) -> ConfigOpts:
    common: dict[str, dict[str, object]] = {
        "DEFAULT": {"driver": "simulated", "auth_strategy": "token_file", "transport_url": "fake://"},
        "api": {"token_file": folder / "tokens"},
        "database": {"connection": f"sqlite:///{folder / 'tenure.db'}"},
        "simulated": {"path": folder / "cloud.db"},
    }
    merged = {group: {**common.get(group, {}), **options.get(group, {})} for group in {**common, **options}}
    conf = new_config()
    read_config(conf, [], files=[write_config(folder / "tenure.conf", merged)], prog="test")
    return conf


@pytest.mark.parametrize("wrong", WRONG_URLS)
@pytest.mark.parametrize("group", ["DEFAULT", "oslo_messaging_notifications"])
def test_invalid_address_is_refused_with_its_option(
    tmp_path: Path, group: str, wrong: str, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.DEBUG)
    conf = configured(tmp_path, {group: {"transport_url": WRONG_URLS[wrong]}})
    with pytest.raises(ConfigurationError) as refused:
        open_manager(conf)
    assert f"[{group}] transport_url" in str(refused.value)
    assert "\n" not in str(refused.value)
    assert refused.value.__suppress_context__
    assert not any(secret in str(refused.value) + caplog.text for secret in SECRETS)


@pytest.mark.parametrize("wrong", WRONG_URLS)
def test_the_api_refuses_an_invalid_address_too(tmp_path: Path, wrong: str):
    with pytest.raises(ConfigurationError, match=r"\[DEFAULT\] transport_url") as refused:
        open_api(configured(tmp_path, {"DEFAULT": {"transport_url": WRONG_URLS[wrong]}}))
    assert not any(secret in str(refused.value) for secret in SECRETS)


@pytest.mark.parametrize("drivers", ["mesagingv2", "messagingv2,nobody"])
def test_unknown_notification_driver_is_refused_with_its_option(tmp_path: Path, drivers: str):
    with pytest.raises(ConfigurationError, match=r"\[oslo_messaging_notifications\] driver") as refused:
        open_manager(configured(tmp_path, {"oslo_messaging_notifications": {"driver": drivers}}))
    assert drivers.rpartition(",")[2] in str(refused.value)
