"""Commands under the names by which older installations look for them."""

from tenureclient.cli.properties import SetHost as SetHost
from tenureclient.cli.properties import UnsetHost as UnsetHost
from tenureclient.cli.resources import commands

_NAMES = {"list": "ListHosts", "show": "ShowHost", "create": "CreateHost", "delete": "DeleteHost"} | {
    "disable": "DisableHost",
    "enable": "EnableHost",
    "reallocate": "ReallocateHost",
}
globals().update({name: commands()[f"host_{verb}"] for verb, name in _NAMES.items()})
