"""What a process of a node does when it is told to read its configuration again."""

import logging
import os
import signal
from collections.abc import Iterable

from gateway.config.config import Config, ConfigError
from gateway.config.reload import Changes, apply, compare

log = logging.getLogger(__name__)


def change_settings(config: Config) -> Changes | None:
    """Read the configuration again, and change the settings that can change while the process runs.

    None if it was not read from anywhere. Raises ConfigError, and changes nothing then.
    """
    try:
        changes = compare(config)
    except ConfigError as error:
        log.error("the configuration stays as it is: %s", error)
        raise
    if changes is not None:
        carry_out([config], changes)
    return changes


def carry_out(configs: Iterable[Config], changes: Changes) -> None:
    """Change the live settings in these configurations, which were read from the same place, and say so."""
    for config in configs:
        apply(config, changes)
    logging.getLogger().setLevel(changes.fresh.log_level.upper())
    if changes.live:
        log.info("settings changed: %s", ", ".join(changes.live))
    if changes.waiting:
        log.warning("settings that change with the next restart: %s", ", ".join(changes.waiting))


class SupervisorLink:
    """The supervisor of this process, which passes SIGHUP on to all processes of the node."""

    def __init__(self) -> None:
        self._pid = os.getppid()

    def reload_all(self, config: Config) -> Changes | None:
        """Let all processes read the configuration again. Returns what will change. Raises ConfigError, and tells
        nobody then."""
        changes = compare(config)
        if os.getppid() == self._pid:  # otherwise it has ended, and so does this process
            os.kill(self._pid, signal.SIGHUP)
        return changes
