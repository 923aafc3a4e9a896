"""The manager's operations between processes, and notifications, on oslo.messaging."""

import warnings

# oslo.messaging imports eventlet if it is installed. We do not use eventlet, so its warnings are useless.
warnings.filterwarnings("ignore", message=r"\s*Eventlet is deprecated")
warnings.filterwarnings("ignore", message="eventletutils module is deprecated")
warnings.filterwarnings("ignore", message="The 'oslo_service.eventlet_backdoor' module usage is deprecated")
