"""Values that hypothesis draws for several streams."""

from hypothesis import strategies as st

from services.domain.ids import Epoch, JobId

EPOCH = Epoch(2**63)
counts = st.integers(0, 2**32 - 1)
big_counts = st.integers(0, 2**64 - 1)
job_ids = st.text(max_size=12).map(JobId)
