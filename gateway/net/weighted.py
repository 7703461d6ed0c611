"""Addresses of nodes with their weights, as clients are told of them. A node of weight 0 comes last, or not at all."""

import random
from collections.abc import Sequence

Weighted = tuple[str, int]  # an address and its weight


def one_of(addresses: Sequence[Weighted]) -> str:
    """An address at random, by its weight; "" if there is none."""
    weights = [weight for _, weight in addresses]
    if not addresses:
        return ""
    return random.choices(addresses, weights if any(weights) else None)[0][0]


def in_any_order(addresses: Sequence[Weighted]) -> list[str]:
    """All of them, in an order in which each is the first one, and the first one of the rest, by its weight."""
    drawn = [(random.random() ** (1 / weight) if weight else 0.0, address) for address, weight in addresses]
    return [address for _, address in sorted(drawn, reverse=True)]


def in_turn(addresses: Sequence[Weighted]) -> list[str]:
    """Each as many times as its weight says, for things that are given out in turn."""
    turns = [address for address, weight in addresses for _ in range(weight)]
    return turns or [address for address, _ in addresses]
