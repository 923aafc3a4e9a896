"""The program ``tenure``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any, TextIO

from osc_lib import shell
from osc_lib.api import auth
from osc_lib.command import commandmanager

import tenureclient
from tenureclient.cli.command import Surroundings

_DESCRIPTION = """Reserve hosts and other resources of a cloud for a stretch of time.

The cloud is found as by 'openstack': with --os-cloud and a clouds.yaml, or with the OS_ variables. For a
Tenure that runs alone, --os-endpoint and --os-token are all that is needed."""


class TenureShell(shell.OpenStackShell):
    """The commands of the reservation service, without the rest of ``openstack``."""

    NAME = "tenure"

    def __init__(
        self, *, surroundings: Surroundings | None = None, stdout: TextIO | None = None, stderr: TextIO | None = None
    ) -> None:
        super().__init__(
            description=_DESCRIPTION,
            version=tenureclient.__version__,
            command_manager=commandmanager.CommandManager("tenure.commands"),
            stdout=stdout,
            stderr=stderr,
            deferred_help=True,
        )
        self.surroundings = surroundings or Surroundings()

    def build_option_parser(
        self, description: str | None, version: str | None, argparse_kwargs: dict[str, Any] | None = None
    ) -> argparse.ArgumentParser:
        parser = super().build_option_parser(description, version)
        parser.prog = self.NAME
        parser.usage = f"{self.NAME} [options] COMMAND [arguments]"
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.allow_abbrev = False
        return auth.build_auth_plugins_option_parser(parser)

    def _final_defaults(self) -> None:
        """Sign in with the token if an address and a token are given, else with a password."""
        super()._final_defaults()
        self._auth_type = "admin_token" if self.options.endpoint and self.options.token else "password"


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    return TenureShell().run(arguments or ["--help"])


if __name__ == "__main__":
    sys.exit(main())
