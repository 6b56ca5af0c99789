"""The one way a forward pass ends early."""


class PrefillCut(Exception):  # noqa: N818 (a requested outcome, not an error)
    """`keep_going` returned False between two layers: the pass is abandoned.

    KV of its rows may be written in part; nothing before them is touched.
    """
