"""The manager's operations between processes, and notifications, on oslo.messaging."""

import warnings

# oslo.messaging imports eventlet where it is installed. Nothing of ours uses it, so its warnings are of no use.
warnings.filterwarnings("ignore", message=r"\s*Eventlet is deprecated")
warnings.filterwarnings("ignore", message="eventletutils module is deprecated")
warnings.filterwarnings("ignore", message="The 'oslo_service.eventlet_backdoor' module usage is deprecated")
