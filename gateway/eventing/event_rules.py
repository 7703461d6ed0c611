"""The event rules of a store, each run by a `RuleRunner`, in the process that has the store.

A commit wakes the rules whose topic filters match its messages. They are found in a trie, once for each topic, so a
rule that is about other topics costs nothing. What a rule reads are the queues of its filters, which the store fills.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from gateway.auth.authority import Authority
from gateway.config.events import EventsConfig
from gateway.eventing.runner import RuleRunner, Surroundings
from gateway.eventing.secrets import WebhookSecrets, WebhookSecretsError
from gateway.eventing.webhook_client import WebhookClient
from gateway.rpc.loop_turns import LoopTurns
from matcher.names import matches
from matcher.trie import Trie
from store.api import EVENT_RULE, Commit, EventRule, Store
from store.commit_listeners import EVENT_RULES, GROUPS, MESSAGES
from store.errors import StoreError

log = logging.getLogger(__name__)

_PAGE: Final = 256  # rules that are read at once
_BUSY: Final = 8  # rules that pop and evaluate at a time
_LONGEST_WAIT_S: Final = 1.0  # for a turn
_RETRY_S: Final = 1.0  # after the rules could not be read


class EventRules:
    """Runs the rules. Create it on the loop, `start` it once, and `stop` it."""

    def __init__(
        self, store: Store, authority: Authority, config: EventsConfig, share: int, traffic: Callable[[], int]
    ) -> None:
        """share: of the loop's time, in percent, for rules that are far behind beside devices. traffic: a number that
        grows with each message of a device. Raises OSError if the secrets of webhooks cannot be read."""
        loop = asyncio.get_running_loop()
        self.secrets = WebhookSecrets(config.webhook_secrets)
        self.client = WebhookClient(config.webhook_networks, config.webhook_connections)
        turns = LoopTurns(share / 100, _LONGEST_WAIT_S, traffic, loop)
        self._around = Surroundings(
            store, authority, self.client, self.secrets, turns, asyncio.Semaphore(_BUSY), self._reads
        )
        self._store = store
        self._runners: dict[bytes, RuleRunner] = {}  # by name
        self._by_topic: Trie[RuleRunner] = Trie()
        self._stale: set[bytes] | None = None  # rules that are to be read again; None: all are
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._listening = store.on_commit(self._committed, 0)
        authority.on_change(self._rights_changed)

    def start(self) -> None:
        self._listening.parts = EVENT_RULES
        self._changed.set()
        self._task = asyncio.get_running_loop().create_task(self._follow())

    async def stop(self) -> None:
        """Stop all rules. What they have sent is settled."""
        self._listening.parts = 0
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        runners, self._runners = self._runners, {}
        await asyncio.gather(*[runner.stop() for runner in runners.values()])
        await self.client.close()

    def reload(self) -> None:
        """Read the secrets of webhooks again. An error is logged, and they stay as they are."""
        try:
            self.secrets.reload()
        except WebhookSecretsError as error:
            log.error("webhooks go on with their old secrets: %s", error)
            return
        for runner in self._runners.values():
            runner.wake()

    def find(self, name: bytes) -> RuleRunner | None:
        """The rule of that name, if it runs here."""
        return self._runners.get(name)

    def _reads(self, name: str, topic: bytes) -> bool:
        """Whether the rule of that name reads a topic."""
        runner = self._runners.get(name.encode())
        return runner is not None and any(matches(each, topic) for each in runner.rule.filters)

    # --- changes

    async def _follow(self) -> None:
        """Run the rules that there are, and follow their changes."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            stale, self._stale = self._stale, set()
            try:
                if stale is None:
                    await self._read_all()
                else:
                    for name in stale:
                        await self._take_over(name, await self._store.event_rule(name))
            except StoreError as error:
                log.warning("event rules cannot be read: %s", error)
                self._stale = None
                self._changed.set()
                await asyncio.sleep(_RETRY_S)

    async def _read_all(self) -> None:
        gone = set(self._runners)
        after: bytes | None = None
        while page := await self._store.event_rules(after, _PAGE):
            for rule in page:
                gone.discard(rule.name)
                runner = self._runners.get(rule.name)
                if runner is None or runner.rule != rule:
                    await self._take_over(rule.name, rule)
                await asyncio.sleep(0)
            after = page[-1].name
        for name in gone:
            await self._take_over(name, await self._store.event_rule(name))

    async def _take_over(self, name: bytes, rule: EventRule | None) -> None:
        """Run a rule as it is now, or no more."""
        runner = self._runners.pop(name, None)
        if runner is not None:
            for each in runner.rule.filters:
                self._by_topic.remove(each, runner)
            await runner.stop()
        if rule is not None:
            runner = self._runners[name] = RuleRunner(rule, self._around)
            for each in rule.filters:
                self._by_topic.add(each, runner)
            if runner.trouble:
                log.warning("rule %r does not run: %s", name.decode(), runner.trouble)
            runner.start()
        self._listening.parts = EVENT_RULES | (MESSAGES | GROUPS if self._runners else 0)

    def _committed(self, commit: Commit) -> None:
        if commit.event_rules:
            if self._stale is not None:
                self._stale.update(commit.event_rules)
            self._changed.set()
        if not self._runners:
            return
        for group in commit.again:
            if group.startswith(EVENT_RULE):
                self._wake(group)
        topics = {*commit.topics, *[moved.topic for moved in commit.moved]} if commit.moved else set(commit.topics)
        for topic in topics:
            for runner in self._by_topic.match(topic):
                runner.wake()

    def _wake(self, group: bytes) -> None:
        runner = self._runners.get(group[len(EVENT_RULE) :])
        if runner is not None:
            runner.wake()

    def _rights_changed(self, _commit: Commit) -> None:
        for runner in self._runners.values():
            if runner.rule.by:
                runner.wake()
