"""Where the parts of an engine meet: what is called of each, what a simpler one is given, and files of parts."""
