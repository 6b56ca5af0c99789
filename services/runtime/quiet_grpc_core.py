"""gRPC's core logs nothing in a process that imports this before grpc, when the core reads its variable. Its reports
have a format of their own, and several lines each; what matters in them reaches us as errors. Who has set it is heeded.
"""

import os

os.environ.setdefault("GRPC_VERBOSITY", "NONE")
