"""Records and measurements turned into evidence: numbers that know their unit, their spread and where they stood."""
