"""Anomalies in labelled series: the detector of `sluice stream anomalies` beside other detectors."""
