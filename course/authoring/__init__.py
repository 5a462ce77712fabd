"""For those who write labs: the proof that every lab is in order."""
