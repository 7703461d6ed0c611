"""Topic names, topic filters, the subscription trie, and selections of messages (`selector`). Pure: no I/O, no asyncio;
imports nothing of Sluice."""
