"""What everything else may use: messages, results, files, limits and text for a terminal."""
