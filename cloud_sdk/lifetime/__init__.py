"""How a client and its parts are closed: in order, within a time limit, and also from inside a handler."""
