"""Allocate what the UEs of a cell share: participation, rounds and the uplink band."""
