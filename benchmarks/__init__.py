"""Benchmarks of Sluice and its peers under the same loads, side by side in one run: `make bench`.

`comparison` has that run. All other modules and packages are benchmarks of one thing each: `python -m benchmarks.NAME`.
Their processes are `brokers`, which measures what each uses, and their devices are the programs in C in `load`.
"""
