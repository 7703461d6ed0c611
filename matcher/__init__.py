"""Topic names, topic filters and the subscription trie. Pure: no I/O, no asyncio; imports nothing of Sluice."""
