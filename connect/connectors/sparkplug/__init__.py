"""Sparkplug B of the Eclipse Foundation: https://sparkplug.eclipse.org/specification/"""
