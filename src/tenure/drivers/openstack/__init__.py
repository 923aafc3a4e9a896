"""OpenStack clouds: ``driver`` has the driver, ``http`` the way to a cloud."""
