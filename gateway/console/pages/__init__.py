"""The pages of the console, by section. Each is a coroutine from a visit to the values of its template."""
