"""A small OpenStack in process: the requests of Keystone, Nova, Placement, Neutron, Cinder and Glance that Tenure uses.

It takes requests as the services do over HTTP, and answers as strictly. ``cloud`` puts the services together,
``transport`` leads the OpenStack driver to them.
"""
