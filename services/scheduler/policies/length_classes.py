"""Classes of jobs whose output lengths are learnt apart, by what is known of a job when it arrives. Pure.

`KeyedClasses`: by client and by the prompt's length, in factors of four. In a class of which little is known the
distribution of all jobs holds (length_distribution.py), so classes that say nothing about the output cost nothing.
`OnlineClasses` (length_prediction.py): by a prediction.
"""

from typing import Protocol

from services.scheduler.job import Job

PROMPT_FACTOR_BITS = 2
"""A class of prompts spans a factor of 4."""
PROMPT_CLASSES = 16
"""As many as there are for prompts of less than 2 ** 32 tokens."""


class LengthClasses(Protocol):
    """Tells a job's class. The number of classes is bounded."""

    def class_of(self, job: Job) -> int:
        """The class of a job that arrives."""

    def learn(self, job: Job, output_tokens: int) -> None:
        """The job completed with this many tokens."""

    def state_key(self) -> tuple[object, ...]:
        """All that the answers depend on."""


class KeyedClasses:
    """Classes of clients and prompt lengths; nothing is learnt about them. Jobs whose client gives no name are taken as
    one client's.
    """

    def class_of(self, job: Job) -> int:
        """Without a name 0 for 1 to 3 tokens, 1 for 4 to 15, ...; PROMPT_CLASSES more for each client number."""
        return job.client_number * PROMPT_CLASSES + (job.prompt_tokens.bit_length() - 1) // PROMPT_FACTOR_BITS

    def learn(self, job: Job, output_tokens: int) -> None:
        """Nothing to learn."""

    def state_key(self) -> tuple[object, ...]:
        return ()
