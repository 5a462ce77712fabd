"""For authors of labs: proof that every lab is in order."""
