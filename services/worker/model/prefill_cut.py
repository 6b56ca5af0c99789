"""The one way a forward pass ends early."""


class PrefillCut(Exception):  # noqa: N818 (an outcome that was asked for, not an error)
    """`keep_going` said no between two layers: the pass is abandoned.

    KV of its rows may be written in part; nothing before them is touched.
    """
