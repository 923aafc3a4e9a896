"""Commands under the names by which older installations look for them."""

from tenureclient.cli.resources import commands

_NAMES = {"list": "ListVolumePools", "show": "ShowVolumePool", "create": "CreateVolumePool"} | {
    "set": "SetVolumePool",
    "delete": "DeleteVolumePool",
    "disable": "DisableVolumePool",
    "enable": "EnableVolumePool",
    "reallocate": "ReallocateVolumePool",
}
globals().update({name: commands()[f"volume_pool_{verb}"] for verb, name in _NAMES.items()})
