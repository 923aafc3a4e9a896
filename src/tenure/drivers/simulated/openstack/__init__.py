"""An OpenStack in process: as much of Keystone, Nova, Placement, Neutron, Cinder and Glance as Tenure asks for.

It takes requests as the services do over HTTP, and answers as strictly. ``cloud`` puts the services together,
``transport`` leads the OpenStack driver to them.
"""
