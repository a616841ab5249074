"""What is shared out on the cell: participation, rounds and the uplink band."""
