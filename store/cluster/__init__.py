"""One log over many nodes: the slots of a shared log, the node that leads and writes them, the nodes that follow."""
