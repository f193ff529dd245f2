"""The engine in a process of its own, for any number of servers."""
