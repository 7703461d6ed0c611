"""Calls the listeners of a store with each commit, each only for commits that have something for it."""

import logging
from typing import Final

from store.api import Commit, CommitListener, Listening, Rest

logger = logging.getLogger(__name__)

# What a listener may ask for, added up.
MESSAGES: Final = 1  # messages that entered their queues, or of which is only told that they did
GROUPS: Final = 2  # groups whose dead letters grew, or whose messages were returned
ACCOUNTS: Final = 4  # users, rules or bans that changed
EVERY_COMMIT: Final = 8
EVENT_RULES: Final = 16  # event rules that were set or removed; only in the process of the store


class CommitListeners:
    """The listeners of one store, in the order in which they were added."""

    __slots__ = ("_all", "_rests")

    def __init__(self) -> None:
        self._all: list[Listening] = []
        self._rests: list[Rest] = []  # of the last commit

    def add(self, listener: CommitListener, parts: int) -> Listening:
        """Call `listener` with commits that have one of these parts, and with commits whose content was missed."""
        listening = Listening(listener, parts)
        self._all.append(listening)
        return listening

    def notify(self, commit: Commit) -> bool:
        """Call all listeners that want the commit. The failure of one is logged, and the others are called.

        Returns whether something is left to do. Then `go_on` has to be called in later turns of the loop, and nothing
        else before it returns False.
        """
        parts = EVERY_COMMIT
        if commit.missed_from >= 0:
            parts |= MESSAGES | GROUPS | ACCOUNTS
        if commit.topics or commit.moved or commit.parents:
            parts |= MESSAGES
        if commit.dead_letters or commit.again:
            parts |= GROUPS
        if commit.users or commit.rules or commit.bans:
            parts |= ACCOUNTS
        if commit.event_rules:
            parts |= EVENT_RULES
        for listening in self._all:
            if listening.parts & parts:
                try:
                    rest = listening.listener(commit)
                except Exception:
                    logger.exception("a commit listener failed")
                else:
                    if rest is not None:
                        self._rests.append(rest)
        return bool(self._rests)

    def go_on(self) -> bool:
        """Let each listener that has something left do a part of it. Returns whether something is left."""
        rests, self._rests = self._rests, []
        for rest in rests:
            try:
                if rest():
                    self._rests.append(rest)
            except Exception:
                logger.exception("a commit listener failed")
        return bool(self._rests)
