"""The commands, shared by ``tenure ...`` and ``openstack reservation ...``."""
