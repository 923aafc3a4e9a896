"""OpenStack clouds."""

from tenure.drivers.openstack.driver import OpenStackCloud
from tenure.drivers.openstack.options import OpenStackOptions
from tenure.drivers.openstack.session import OnCall, open_session

__all__ = ["OnCall", "OpenStackCloud", "OpenStackOptions", "open_session"]
