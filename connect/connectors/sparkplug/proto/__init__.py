"""The payload of Sparkplug B; `make proto` generates the code."""
