"""The commitlog: segments on disk, the thread that writes them, readers, and recovery after a crash."""
