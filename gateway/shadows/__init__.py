"""Device shadows: what the state of a device is to be, and what the device said it is, kept while it is away."""
