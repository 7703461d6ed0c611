"""The connectors that ship here, in a folder for each system. Each imports the client of its system in the methods that
need it."""
