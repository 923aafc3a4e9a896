"""The clock of the database: where it is set back, what was noted before lies in the future."""

from __future__ import annotations

import logging
from datetime import datetime

from tenure.services.events import EventService
from tenure.services.outbox import OutboxService

LOG = logging.getLogger(__name__)


class ClockWatch:
    """Notices that the clock was set back, and lets nothing wait for it to catch up that need not.

    A claim that lasts longer than claims can was made before the clock was set back: it is over. An attempt that is due
    later than any attempt can be is made now.
    """

    def __init__(self, events: EventService, outbox: OutboxService) -> None:
        self._events = events
        self._outbox = outbox
        self._latest: datetime | None = None

    def run(self) -> int:
        """Look at the clock; how many events and messages it had put off. The first time it may have been set back."""
        now = self._events.now()
        was_set_back = self._latest is None or now < self._latest
        self._latest = now
        if not was_set_back:
            return 0
        count = self._events.expire_late_claims() + self._outbox.expire_late_claims()
        if count:
            LOG.warning("the clock was set back; %d events and messages do not wait for it", count)
        return count
