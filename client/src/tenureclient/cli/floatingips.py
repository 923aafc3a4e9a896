"""Commands under the names by which older installations look for them."""

from tenureclient.cli.resources import commands

_NAMES = {"list": "ListFloatingIPs", "show": "ShowFloatingIP", "create": "CreateFloatingIP"} | {
    "delete": "DeleteFloatingIP",
    "disable": "DisableFloatingIP",
    "enable": "EnableFloatingIP",
    "reallocate": "ReallocateFloatingIP",
}
globals().update({name: commands()[f"floatingip_{verb}"] for verb, name in _NAMES.items()})
