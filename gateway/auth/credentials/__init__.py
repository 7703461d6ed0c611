"""Proofs of who somebody is: passwords, SCRAM and access keys."""
