"""What happens when: the protocol's rounds, the virtual clock that plays them, and the timeline it leaves."""
