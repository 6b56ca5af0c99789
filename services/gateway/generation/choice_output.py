"""The output of one choice, stored once, and the cursors of its readers.

Numbered tokens arrive from the scheduler and are turned into text here, by a detokenizer and a search for stop strings.
Tokens and text are kept until the request is over, so that a client may join late or read slowly without a queue of its
own: a reader is only a cursor, and gets what it missed as one larger piece. What is kept is bounded by max_tokens. The
length of the text up to each token is kept too, so that a client that resumes at a token gets the same text with it as
the client before.

Log probabilities of the prompt come before all tokens. A job whose prompt alone is wanted makes one token, as a prefill
does; it is nobody's output.
"""

from array import array
from collections.abc import Sequence

from services.domain.errors import ProtocolError
from services.domain.generation import EndReason, OutputPiece, TokenLogprob
from services.domain.job_sampling import JobSampling
from services.domain.prompt_logprobs import KnownPromptLogprobs
from services.domain.submission import JobUpdate
from services.gateway.generation.detokenizer import Detokenizer
from services.gateway.generation.stop_strings import StopStrings

MOST_TOKENS_A_PIECE = 2048
"""Bounds the size of a message: with 20 alternatives per token it stays below 1 MiB."""


class ChoiceOutput:
    """The tokens and text of one choice so far. `finish` is set once it is over. `prompt` are all its tokens; not
    `has_output`: it alone is wanted.
    """

    __slots__ = (
        "_detokenizer",
        "_has_output",
        "_sampling",
        "_stops",
        "_text",
        "_text_ends",
        "finish",
        "logprobs",
        "prompt",
        "scores",
        "token_ids",
    )

    def __init__(
        self,
        sampling: JobSampling,
        detokenizer: Detokenizer,
        stop: tuple[str, ...],
        prompt: Sequence[int] = (),
        *,
        has_output: bool = True,
    ) -> None:
        self._sampling = sampling
        self._has_output = has_output
        self.prompt = prompt
        self.scores = None if sampling.prompt_logprobs is None else KnownPromptLogprobs(len(prompt))
        """Log probabilities of the prompt, if they are wanted."""
        self._detokenizer = detokenizer
        self._stops = StopStrings(stop)
        self._text = bytearray()
        self._text_ends = array("I")
        self.token_ids = array("I")
        self.logprobs: list[TokenLogprob] = []
        self.finish: EndReason | None = None

    @property
    def stop_found(self) -> bool:
        """Whether a stop string was found, after which nothing may follow."""
        return self._stops.found

    def take(self, update: JobUpdate) -> int:
        """Adds what is new, and returns how many tokens were. Raises ProtocolError if tokens, or log probabilities of
        the prompt, are missing in between.
        """
        if self.scores is not None:
            is_output = len(update.token_ids) > 0 or (update.finish is not None and update.finish.completes)
            if update.prompt_logprobs is not None:
                self.scores.add(update.prompt_logprobs)
            elif is_output and not self.scores.are_complete:
                raise ProtocolError(f"output of a job, but the prompt's token {self.scores.end} has no log probability")
        if not self._has_output or not update.token_ids:
            return 0
        return self.extend(update.first_token_number, update.token_ids, update.logprobs)

    def extend(self, first_token_number: int, token_ids: Sequence[int], logprobs: Sequence[TokenLogprob]) -> int:
        """Adds tokens and returns how many were new. Tokens already known, and tokens after a stop string, are skipped.

        Raises ProtocolError if tokens are missing in between.
        """
        known = len(self.token_ids)
        skip = known - first_token_number
        if skip < 0:
            raise ProtocolError(
                f"token {first_token_number} of a job arrived after only {known} tokens: some are missing"
            )
        for place in range(skip, len(token_ids)):
            if self._stops.found:
                break
            self._take(token_ids[place])
            if logprobs:
                self.logprobs.append(logprobs[place])
        return len(self.token_ids) - known

    def _take(self, token_id: int) -> None:
        number = len(self.token_ids)
        self.token_ids.append(token_id)
        # The sampler masks stop tokens before min_tokens, so this one ends the output, and its text is not part of it.
        text = "" if token_id in self._sampling.stop_token_ids else self._detokenizer.push(token_id)
        if text:
            self._text += self._stops.push(text, counts=number >= self._sampling.min_tokens).encode()
        self._text_ends.append(len(self._text))

    def end(self, finish: EndReason) -> None:
        """Ends the output. Any text held back is added to it, unless a stop string has ended the text."""
        if not self._stops.found:
            shown = self._stops.push(self._detokenizer.finish())
            self._text += (shown + self._stops.finish()).encode()
        self.finish = finish

    def text_before(self, token_number: int) -> int:
        """The length in bytes of the text that came with the tokens before this one."""
        reached = min(token_number, len(self._text_ends))
        return self._text_ends[reached - 1] if reached else 0

    def text_from(self, start: int, last_token_number: int) -> str:
        """The text from byte `start` up to and including what came with the given token; up to the end for the last."""
        at_end = self.finish is not None and last_token_number + 1 >= len(self.token_ids)
        end = len(self._text) if at_end else self.text_before(last_token_number + 1)
        return self._text[start:end].decode()


class Cursor:
    """A reader's position in a choice."""

    __slots__ = ("_choice", "_output", "_score_place", "_text_start", "_token_number", "finished")

    def __init__(self, choice: int, output: ChoiceOutput, from_token: int) -> None:
        self._choice = choice
        self._output = output
        self._token_number = from_token
        # One that goes on after some output has had those of the prompt.
        self._score_place = 1 if from_token == 0 else len(output.prompt)
        self._text_start: int | None = None
        self.finished = False

    @property
    def token_number(self) -> int:
        """The number of the next token."""
        return self._token_number

    def is_due(self, least_tokens: int) -> bool:
        """Whether there is a piece to take: so many tokens, the first ones or the last, or a part of the prompt's log
        probabilities.
        """
        output = self._output
        if output.scores is not None and self._score_place < output.scores.end:
            return True
        if output.finish is not None or output.stop_found:
            return not self.finished
        # Without a text so far, nothing has been taken.
        wanted = 1 if self._text_start is None else least_tokens
        return len(output.token_ids) - self._token_number >= wanted

    def take(self) -> OutputPiece | None:
        """The next piece, or None if there is nothing new or the last one was taken."""
        output, number = self._output, self._token_number
        if output.scores is not None and self._score_place < output.scores.end:
            start, self._score_place = (
                self._score_place,
                min(output.scores.end, self._score_place + MOST_TOKENS_A_PIECE),
            )
            part = output.scores.known.between(start, self._score_place)
            return OutputPiece(self._choice, number, (), "", (), None, part.of(output.prompt))
        known = len(output.token_ids)
        if self.finished or (known <= number and output.finish is None):
            return None
        if self._text_start is None:
            self._text_start = output.text_before(number)
        until = min(known, number + MOST_TOKENS_A_PIECE)
        text = output.text_from(self._text_start, until - 1)
        finish = output.finish if until >= known else None
        piece = OutputPiece(
            self._choice, number, output.token_ids[number:until], text, output.logprobs[number:until], finish
        )
        self._text_start = output.text_before(until)
        self._token_number = max(number, until)
        self.finished = finish is not None
        return piece
