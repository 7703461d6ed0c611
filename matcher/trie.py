"""The subscription trie: which values are registered under a filter that matches a topic.

Theory of operation
-------------------
A filter without wildcard matches one topic, so it lives in a plain dictionary. The others live in a tree
with one level of the filter per node; a tail that no other filter shares stays text in its first node
(`_Node.rest`), so most filters cost one node. A match walks the tree one topic level at a time with a
frontier of nodes: no recursion, and no node is visited twice.

Answers are cached by topic. A cached answer names the *family* it was made from: the tree of its first
level, which counts its changes. A change in `home/…` thus outdates exactly the answers of `home/…`, without
looking at them. Filters that begin with a wildcard outdate all answers; filters without wildcard drop one.
The cache has two halves: when the young one is full it becomes the old one, and the old one is forgotten,
so it is bounded and keeps what is used without moving anything on a hit.
"""

from typing import Final, Generic, TypeVar

from mypy_extensions import i64

from matcher.names import has_wildcard, levels_match, parent_of

V = TypeVar("V")

DEFAULT_CACHE_REFERENCES: Final = 1 << 20  # of values and topics, over both halves
_TOPIC_COST: Final = 16  # a cached topic is worth as many references, in memory, and one more for each 8 of its bytes
_FEW: Final = 8  # up to so many values of a filter in a tuple, more in a dictionary

# The values of a filter, in the order they came. A dictionary adds and removes at a constant cost.
_Values = tuple[V, ...] | dict[V, None]


class _Node(Generic[V]):
    """One level of wildcard filters, or (`rest` not empty) the whole tail of a single one.

    A rest is written with its slash, as `/a/+`: so `/` is one more level, an empty one, and nothing is none.
    """

    __slots__ = ("children", "plus", "rest", "under", "values")

    def __init__(self, rest: bytes) -> None:
        self.rest = rest  # what the one filter here has behind this level; then only `values` is used
        self.values: _Values[V] = ()  # of the filter that ends here (or in `rest`)
        self.under: _Values[V] = ()  # of the filter with # below here
        self.plus: _Node[V] | None = None
        self.children: dict[bytes, _Node[V]] | None = None

    def is_empty(self) -> bool:
        return not self.values and not self.under and self.plus is None and not self.children


class _Family(Generic[V]):
    """All wildcard filters that begin with the same level."""

    __slots__ = ("generation", "root")

    def __init__(self) -> None:
        self.root: _Node[V] = _Node(b"")
        self.generation: i64 = 0  # counts changes


class _Answer(Generic[V]):
    """A cached match, true as long as both generations are what they were."""

    __slots__ = ("family", "family_generation", "generation", "values")

    def __init__(self, family: _Family[V], generation: i64, values: list[V]) -> None:
        self.family = family
        self.family_generation: i64 = family.generation
        self.generation: i64 = generation
        self.values = values


class Trie(Generic[V]):
    """Values by topic filter. Values must be hashable; the same value under two filters counts twice.

    Filters and topics must be valid (`matcher.names`) and filters not shared ones: pass what
    `split_shared` returns.
    """

    __slots__ = (
        "_cost",
        "_count",
        "_exact",
        "_families",
        "_generation",
        "_limit",
        "_nobody",
        "_old",
        "_wild",
        "_young",
    )

    def __init__(self, cache_references: int = DEFAULT_CACHE_REFERENCES) -> None:
        self._exact: dict[bytes, _Values[V]] = {}
        self._families: dict[bytes, _Family[V]] = {}
        self._wild: _Node[V] = _Node(b"")  # filters that begin with a wildcard
        self._nobody: _Family[V] = _Family()  # stands in for families that do not exist
        self._generation: i64 = 0  # counts changes of `_wild`
        self._count: i64 = 0
        self._young: dict[bytes, _Answer[V]] = {}
        self._old: dict[bytes, _Answer[V]] = {}
        self._cost: i64 = 0  # references the young half is worth
        self._limit: i64 = cache_references // 2

    def __len__(self) -> int:
        """The number of filters."""
        return int(self._count)

    def match(self, topic: bytes) -> list[V]:
        """The values of all filters that match `topic`. The list is shared: do not change it."""
        answer = self._young.get(topic)
        if answer is None:
            answer = self._old.get(topic)
            if answer is None or not self._is_true(answer):
                return self._find(topic)
            self._remember(topic, answer)
        elif not self._is_true(answer):
            return self._find(topic)
        return answer.values

    def add(self, topic_filter: bytes, value: V) -> None:
        """Register `value` under the filter. Doing it again changes nothing."""
        if not has_wildcard(topic_filter):
            known = self._exact.get(topic_filter)
            if known is None:
                self._count += 1
                known = ()
            self._exact[topic_filter] = _with(known, value)
            self._forget(topic_filter)
            return
        first = parent_of(topic_filter)
        if first in (b"+", b"#"):
            self._generation += 1
            self._add_below(self._wild, b"/" + topic_filter, value)
        else:
            family = self._families.get(first)
            if family is None:
                family = self._families[first] = _Family()
                self._nobody.generation += 1
            family.generation += 1
            self._add_below(family.root, topic_filter[len(first) :], value)

    def remove(self, topic_filter: bytes, value: V) -> bool:
        """Take `value` from the filter. Returns whether it was there."""
        if not has_wildcard(topic_filter):
            return self._remove_exact(topic_filter, value)
        first = parent_of(topic_filter)
        if first in (b"+", b"#"):
            if not self._remove_below(self._wild, b"/" + topic_filter, value):
                return False
            self._generation += 1
            return True
        family = self._families.get(first)
        if family is None or not self._remove_below(family.root, topic_filter[len(first) :], value):
            return False
        family.generation += 1
        if family.root.is_empty():
            del self._families[first]
        return True

    def filters(self) -> list[bytes]:
        """All filters, in no order."""
        found = list(self._exact)
        found.extend([name[1:] for name in _filters_below([(b"", self._wild)])])
        found.extend(_filters_below([(first, family.root) for first, family in self._families.items()]))
        return found

    def _is_true(self, answer: _Answer[V]) -> bool:
        return answer.generation == self._generation and answer.family_generation == answer.family.generation

    def _find(self, topic: bytes) -> list[V]:
        levels = topic.split(b"/")
        values: list[V] = []
        exact = self._exact.get(topic)
        if exact is not None:
            values.extend(exact)
        frontier: list[_Node[V]] = []
        if not topic.startswith(b"$"):  # MQTT-4.7.2-1
            values.extend(self._wild.under)
            if self._wild.plus is not None:
                frontier.append(self._wild.plus)
        family = self._families.get(levels[0])
        if family is None:
            family = self._nobody
        else:
            frontier.append(family.root)
        if frontier:
            _walk(frontier, levels, values)
        self._remember(topic, _Answer(family, self._generation, values))
        return values

    def _remember(self, topic: bytes, answer: _Answer[V]) -> None:
        cost = len(answer.values) + _TOPIC_COST + (len(topic) >> 3)
        self._cost += cost
        if self._cost > self._limit:
            self._old = self._young
            self._young = {}
            self._cost = cost
        self._young[topic] = answer

    def _forget(self, topic: bytes) -> None:
        self._young.pop(topic, None)
        self._old.pop(topic, None)

    def _add_below(self, node: _Node[V], rest: bytes, value: V) -> None:
        """Add the filter that continues with `rest` behind `node`."""
        while True:
            if node.rest:
                if node.rest == rest:
                    break
                _unfold(node)
            if not rest:
                break
            if rest == b"/#":
                self._count += 0 if node.under else 1
                node.under = _with(node.under, value)
                return
            level, rest = _step(rest)
            node = _grow(node, level, rest)
        self._count += 0 if node.values else 1
        node.values = _with(node.values, value)

    def _remove_exact(self, topic: bytes, value: V) -> bool:
        values = self._exact.get(topic)
        if values is None or value not in values:
            return False
        left = _without(values, value)
        if left:
            self._exact[topic] = left
        else:
            del self._exact[topic]
            self._count -= 1
        self._forget(topic)
        return True

    def _remove_below(self, node: _Node[V], rest: bytes, value: V) -> bool:
        """Remove `value` from the filter that continues with `rest` behind `node`, and nodes left empty."""
        path: list[tuple[_Node[V], bytes]] = []  # the nodes above, each with the level taken from it
        while rest and rest not in (node.rest, b"/#"):
            level, rest = _step(rest)
            child = _child(node, level)
            if child is None:
                return False
            path.append((node, level))
            node = child
        under = rest == b"/#" and not node.rest
        if rest != node.rest and not under:
            return False
        values = node.under if under else node.values
        if value not in values:
            return False
        left = _without(values, value)
        if under:
            node.under = left
        else:
            node.values = left
        if not left:
            self._count -= 1
        while path and node.is_empty():
            node, level = path.pop()
            _cut(node, level)
        return True


def _walk(frontier: list[_Node[V]], levels: list[bytes], values: list[V]) -> None:
    """Extend `values` by what matches below the nodes of the first level."""
    depth = 1
    last = len(levels)
    while frontier:
        reached: list[_Node[V]] = []
        for node in frontier:
            if node.rest:
                if levels_match(node.rest[1:].split(b"/"), levels, depth):
                    values.extend(node.values)
                continue
            if node.under:
                values.extend(node.under)
            if depth == last:
                if node.values:
                    values.extend(node.values)
                continue
            if node.plus is not None:
                reached.append(node.plus)
            if node.children is not None:
                child = node.children.get(levels[depth])
                if child is not None:
                    reached.append(child)
        frontier = reached
        depth += 1


def _filters_below(stack: list[tuple[bytes, _Node[V]]]) -> list[bytes]:
    """The filters in the trees of `stack`, whose roots are given with the text above them."""
    found: list[bytes] = []
    while stack:
        prefix, node = stack.pop()
        if node.values:
            found.append(prefix + node.rest)
        if node.under:
            found.append(prefix + b"/#")
        if node.plus is not None:
            stack.append((prefix + b"/+", node.plus))
        if node.children is not None:
            stack.extend([(prefix + b"/" + level, child) for level, child in node.children.items()])
    return found


def _child(node: _Node[V], level: bytes) -> _Node[V] | None:
    if level == b"+":
        return node.plus
    return None if node.children is None else node.children.get(level)


def _step(rest: bytes) -> tuple[bytes, bytes]:
    """The first level of a rest that is not empty, and the rest behind it."""
    level, slash, below = rest[1:].partition(b"/")
    return level, slash + below


def _grow(node: _Node[V], level: bytes, rest: bytes) -> _Node[V]:
    """The child for `level`; a new one takes `rest` as its text."""
    child = _child(node, level)
    if child is None:
        child = _Node(rest)
        if level == b"+":
            node.plus = child
        elif node.children is None:
            node.children = {level: child}
        else:
            node.children[level] = child
    return child


def _cut(node: _Node[V], level: bytes) -> None:
    if level == b"+":
        node.plus = None
    elif node.children is not None:
        del node.children[level]
        if not node.children:
            node.children = None


def _unfold(node: _Node[V]) -> None:
    """Move the tail that is text one level down, so that another filter can pass."""
    rest, values = node.rest, node.values
    node.rest = b""
    node.values = ()
    if rest == b"/#":
        node.under = values
        return
    level, below = _step(rest)
    _grow(node, level, below).values = values


def _with(values: _Values[V], value: V) -> _Values[V]:
    if value in values:
        return values
    if isinstance(values, tuple):
        if len(values) < _FEW:
            return (*values, value)
        values = dict.fromkeys(values)
    values[value] = None
    return values


def _without(values: _Values[V], value: V) -> _Values[V]:
    if isinstance(values, tuple):
        return tuple([other for other in values if other != value])
    del values[value]
    return values if values else ()
