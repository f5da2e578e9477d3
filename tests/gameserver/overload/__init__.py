"""Tests of `gameserver.overload`."""
