"""Floating IP addresses as the server describes them."""

from __future__ import annotations

from datetime import datetime

from tenureclient.documents import Document, LooseText, SetFlag, document
from tenureclient.models import Standing


@document("a floating IP of a lease", kw_only=True)
class LeaseFloatingIP(Document):
    """An address of a lease, as its owner sees it. ``status`` is ``planned``, ``held`` or ``released``."""

    id: str
    floating_ip_address: str
    status: LooseText
    floating_network_id: LooseText
    subnet_id: LooseText
    reservation_id: str
    start_date: datetime
    end_date: datetime


@document("a floating IP", kw_only=True)
class FloatingIP(Standing):
    """An address of an external network that can be reserved."""

    id: str
    floating_ip_address: str
    floating_network_id: LooseText
    subnet_id: LooseText
    reservable: SetFlag
